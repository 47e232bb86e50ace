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
    max_tokens: int | None = None
    """What the context has room for if absent."""
    max_tokens_field: str = "max_tokens"
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
