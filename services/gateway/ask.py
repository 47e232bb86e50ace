"""What a client asks for, in one form whichever API it came through. Raw: `validation.py` says whether it is sound."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Text to continue as it is; special tokens inside it are plain text."""

    text: str
    field: str = "prompt"


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids to continue."""

    ids: tuple[int, ...]
    field: str = "prompt"


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation for the model's chat template."""

    messages: tuple[ChatMessage, ...]
    field: str = "messages"


Prompt = TextPrompt | TokenPrompt | ChatPrompt
"""`field` is the caller's name for it, for errors."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request before anything about it is believed."""

    prompt: Prompt
    model: str = ""
    """Empty takes the only model there is."""
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    """Drawn here if absent."""
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, bias)."""
    logprobs: int | None = None
    """How many of the most likely tokens to report beside each drawn one; None reports nothing."""
    logprobs_field: str = "logprobs"
    max_logprobs: int = 20
    """The most that the API allows through which this came."""
    n: int = 1
    """Answers to the prompt."""
    max_tokens: int | None = None
    """What the context has room for if absent."""
    max_tokens_field: str = "max_tokens"
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    user: str = ""
    """Whose it is, if it comes without a key."""
    service_tier: str = ""
    """Empty, `auto` and `default` want nothing in particular."""
    priority: int = 0
    """Among the same client's requests; higher goes first."""
    cache_salt: str = ""
    """Cached KV is shared only between requests of one salt."""
