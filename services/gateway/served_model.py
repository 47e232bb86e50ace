"""The model as the gateway sees it: names, limits, and text to tokens and back. Knows no weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from services.core.errors import InvalidRequest
from services.gateway.ask import ChatPrompt, Prompt, TextPrompt
from services.gateway.detokenizer import Detokenizer
from services.modelfiles.chat_encoding import encode_chat
from services.modelfiles.prepared import PreparedModel


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model, open for tokenizing."""

    name: str
    digest: str
    context: int
    """Most tokens of prompt and answer together."""
    vocab: int
    stop_ids: frozenset[int]
    """Ids that end an answer by themselves."""
    encode_text: Callable[[str], Sequence[int]]
    """Special tokens inside the text are plain text."""
    encode_chat: Callable[[Sequence[dict[str, str]]], Sequence[int]]
    """Through the chat template. Raises InvalidRequest if there is none, or if it refuses the messages."""
    token_bytes: Callable[[int], bytes]
    """What a token adds to the text; nothing for a special token or an id without one."""
    controls: Mapping[int, str] = field(default_factory=dict)
    """Names of control tokens, which add nothing to a text."""
    longest_token: int = 0
    """Bytes of the longest token; 0 if that is not known."""
    drops_first_space: bool = False
    """The vocabulary begins every text with a space."""

    def cannot_fit(self, prompt: Prompt) -> bool:
        """Whether the prompt fills the context however it is cut into tokens, so that tokenizing it is in vain."""
        match prompt:
            case TextPrompt(text):
                return self._overflows(text)
            case ChatPrompt(messages):
                return self._overflows("".join(message.content for message in messages))
            case _:
                return len(prompt.ids) >= self.context

    def _overflows(self, text: str) -> bool:
        return 0 < self.longest_token * self.context <= len(text.encode("utf-8", "replace"))

    def tokenize(self, prompt: Prompt) -> tuple[int, ...]:
        """The prompt's ids. Takes time in proportion to the text. Raises what `encode_chat` raises."""
        if isinstance(prompt, TextPrompt):
            return tuple(self.encode_text(prompt.text))
        if isinstance(prompt, ChatPrompt):
            turns = [{"role": message.role, "content": message.content} for message in prompt.messages]
            return tuple(self.encode_chat(turns))
        return prompt.ids

    def detokenizer(self, prompt: Prompt) -> Detokenizer:
        """For the answer to `prompt`. One that continues a text keeps its first space, which stands between the two."""
        drops_first_space = self.drops_first_space and isinstance(prompt, ChatPrompt)
        return Detokenizer(self.token_bytes, drops_first_space=drops_first_space)


def served(prepared: PreparedModel) -> ServedModel:
    """Opens a prepared model's texts; takes a moment (0.1 to 1 s)."""
    tokenizer, template = prepared.tokenizer(), prepared.chat_template()
    beginning = [prepared.bos_id] if prepared.add_bos and prepared.bos_id is not None else []

    def encode_text(text: str) -> list[int]:
        return beginning + tokenizer.encode(text)

    def encode_turns(turns: Sequence[dict[str, str]]) -> list[int]:
        if template is None:
            raise InvalidRequest("this model has no chat template; send a plain prompt", field="messages")
        return encode_chat(tokenizer, template, turns)

    return ServedModel(
        name=prepared.name,
        digest=prepared.digest,
        context=prepared.config.context,
        vocab=prepared.config.vocab,
        stop_ids=prepared.stop_ids,
        encode_text=encode_text,
        encode_chat=encode_turns,
        token_bytes=tokenizer.token_bytes,
        controls=tokenizer.specials,
        longest_token=max((len(tokenizer.token_bytes(token)) for token in range(tokenizer.size)), default=0),
        drops_first_space=tokenizer.drops_first_space,
    )
