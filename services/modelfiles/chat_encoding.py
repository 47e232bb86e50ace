"""A conversation into token ids, such that what people write never becomes a control token.

A template writes control tokens as text, so they are recognized in the rendered prompt. Text of a message that looks
like one gets its first character replaced by a stand-in (a private-use character found nowhere in the conversation)
before rendering. The prompt is then cut at its control tokens, which only the template can have written, and the text
in between is encoded as plain text with the characters put back. A prompt without stand-ins is encoded whole, so
its ids are exactly those of rendering and encoding.

A control token could still come together from the end of a message and what follows it. So the prompt is also rendered
with all characters replaced with which a control token begins or ends: both ends of those found there are the
template's. If the two renderings differ in their control tokens, this one counts.

Known limit: in a prompt with stand-ins, a byte-fallback tokenizer that marks the start of a text only (Metaspace
`first`) marks the start of each part.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from services.core.errors import InvalidRequest
from services.modelfiles.chat_template import ChatTemplate, Message
from services.modelfiles.tokenizer import Piece, Tokenizer

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles reach the template as they are, so only these words can."""

_DEEPEST_MESSAGE = 32
_FIRST_STAND_IN = 0xF0000
"""Plane 15: private use, without meaning anywhere."""


def encode_chat(
    tokenizer: Tokenizer, template: ChatTemplate, messages: Sequence[Message], *, add_generation_prompt: bool = True
) -> list[int]:
    """The ids of the rendered conversation. Nothing is added to what the template writes; a doubled beginning is one.

    Raises `InvalidRequest` if there is no message, a role is unknown, or the template refuses.
    """
    _require_known_roles(messages)
    guard = _Guard.against(tokenizer.specials.values(), messages)

    def render(hidden: Callable[[str], str]) -> str:
        return template.render(
            [_guarded(message, hidden) for message in messages], add_generation_prompt=add_generation_prompt
        )

    text = render(guard.hide_lookalikes)
    ids, controls = tokenizer.encode_trusted(text)
    if guard.finds_ends(messages):
        strict = render(guard.hide_ends)
        _, strict_controls = tokenizer.encode_trusted(strict)
        if [control.token for control in controls] != [control.token for control in strict_controls]:
            text, controls = strict, strict_controls
    if guard.is_in(text):
        ids = _encode_between(tokenizer, text, controls, guard)
    while template.bos_id is not None and ids[:2] == [template.bos_id] * 2:
        del ids[0]
    return ids


@dataclass(frozen=True, slots=True)
class _Guard:
    """Hides in text what could become a control token, and puts it back."""

    lookalike: re.Pattern[str]
    """Matches at the first character of a control token's text."""
    stand_ins: Mapping[int, str]
    """Code point to stand-in, for the first and last character of every control token; for `str.translate`."""

    @staticmethod
    def against(specials: Iterable[str], messages: Sequence[Message]) -> "_Guard":
        texts = [special for special in specials if special]
        taken = {character for text in _strings(messages) for character in text}
        free = (chr(point) for point in range(_FIRST_STAND_IN, 0x110000) if chr(point) not in taken)
        ends = sorted({end for text in texts for end in (text[0], text[-1])})
        return _Guard(
            lookalike=re.compile("(?=" + "|".join(map(re.escape, texts)) + ").", re.DOTALL)
            if texts
            else re.compile("(?!)"),
            stand_ins={ord(end): next(free) for end in ends},
        )

    def hide_lookalikes(self, text: str) -> str:
        return self.lookalike.sub(lambda found: self.stand_ins[ord(found[0])], text)

    def hide_ends(self, text: str) -> str:
        return text.translate(self.stand_ins)

    def put_back(self, text: str) -> str:
        return text.translate({ord(stand_in): chr(point) for point, stand_in in self.stand_ins.items()})

    def finds_ends(self, messages: Sequence[Message]) -> bool:
        return any(self.hide_ends(text) != text for text in _strings(messages))

    def is_in(self, text: str) -> bool:
        return self.put_back(text) != text


def _encode_between(tokenizer: Tokenizer, text: str, controls: Sequence[Piece], guard: _Guard) -> list[int]:
    """The control tokens as they are, and the text between them as plain text."""
    ids: list[int] = []
    begin = 0
    for control in controls:
        ids += tokenizer.encode(guard.put_back(text[begin : control.begin]))
        ids.append(control.token)
        begin = control.end
    return ids + tokenizer.encode(guard.put_back(text[begin:]))


def _require_known_roles(messages: Sequence[Message]) -> None:
    if not messages:
        raise InvalidRequest("a conversation needs at least one message", field="messages")
    if any(message.get("role") not in ROLES for message in messages):
        raise InvalidRequest(f"the role of a message must be one of {', '.join(ROLES)}", field="messages")


def _guarded(message: Message, hidden: Callable[[str], str]) -> Message:
    return {key: value if key == "role" else _changed(value, hidden) for key, value in message.items()}


def _changed(value: object, change: Callable[[str], str]) -> object:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_changed(key, change): _changed(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_changed(item, change) for item in value]
    return value


def _strings(value: object, depth: int = 0) -> Iterator[str]:
    if depth > _DEEPEST_MESSAGE:
        raise InvalidRequest("a message is nested too deeply", field="messages")
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key, depth + 1)
            yield from _strings(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item, depth + 1)
