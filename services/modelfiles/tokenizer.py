"""Text to ids and ids to bytes.

Text that merely looks like a control token stays text unless the caller says that the text is trusted. Ids become
bytes and not strings, because one character may be spread over several tokens. Two forms of vocabulary are known:

    byte-level   `Ġthe`    every character of a piece stands for one byte (GPT-2, Llama 3, Qwen, SmolLM)
    byte-fallback `▁the`   pieces are text with `▁` for a space, `<0xNN>` is a byte (Llama 2, SentencePiece)
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tokenizers import Tokenizer as Fast

from services.core.errors import InvalidRequest
from services.modelfiles.errors import ModelError

_FALLBACK_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True, slots=True)
class Piece:
    """A control token found in trusted text, between two positions (in characters)."""

    token: int
    begin: int
    end: int


class Tokenizer:
    """Immutable after construction, so threads may share it. Built from the text of a tokenizer.json."""

    def __init__(self, tokenizer_json: str) -> None:
        """Raises `ModelError` if the text is no tokenizer, or of neither known form."""
        try:
            self._trusting = Fast.from_str(tokenizer_json)
            self._inert = Fast.from_str(tokenizer_json)
        except Exception as error:  # the library raises nothing narrower
            raise ModelError("the tokenizer cannot be read") from error
        for tokenizer in (self._trusting, self._inert):
            tokenizer.no_truncation()
            tokenizer.no_padding()
        # A property of the whole tokenizer and not of a call: hence two tokenizers.
        self._inert.encode_special_tokens = True
        added = self._trusting.get_added_tokens_decoder()
        self._special = {index: token.content for index, token in added.items() if token.special}
        steps = _decoder_steps(tokenizer_json)
        self.drops_first_space = "Strip" in steps
        """The first space of a whole text is an artifact of the vocabulary (byte-fallback only)."""
        self._bytes = _bytes_by_id(self._trusting.get_vocab(with_added_tokens=True), self._special, steps)

    @property
    def size(self) -> int:
        """Ids are below this; the model's table may have more rows, for which there are no tokens."""
        return len(self._bytes)

    @property
    def specials(self) -> Mapping[int, str]:
        """Control tokens by id."""
        return self._special

    def is_special(self, token: int) -> bool:
        """Whether the id is a control token, which is never shown."""
        return token in self._special

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """Ids of `text` and nothing else: neither beginning nor end is added.

        With `allow_special` control tokens written in the text become their ids; otherwise they are text like any
        other. Raises `InvalidRequest` for text that is not Unicode (a lone surrogate).
        """
        tokenizer = self._trusting if allow_special else self._inert
        # The batch form lets other threads run meanwhile; the plain one holds the interpreter for as long as it takes.
        return list(tokenizer.encode_batch_fast([_checked(text)], add_special_tokens=False)[0].ids)

    def encode_trusted(self, text: str) -> tuple[list[int], list[Piece]]:
        """As `encode` with `allow_special`, and where the control tokens were."""
        encoding = self._trusting.encode_batch([_checked(text)], add_special_tokens=False)[0]
        found = zip(encoding.ids, encoding.offsets, strict=True)
        return list(encoding.ids), [Piece(token, *span) for token, span in found if token in self._special]

    def token_bytes(self, token: int) -> bytes:
        """What the token adds to the text in UTF-8; nothing for a control token or an id without a token."""
        return self._bytes[token] if 0 <= token < len(self._bytes) else b""

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of the tokens without control tokens; bytes that are not UTF-8 become U+FFFD."""
        text = b"".join(map(self.token_bytes, tokens)).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.drops_first_space else text


def _checked(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest("the text is not valid Unicode: it has a lone surrogate") from error
    return text


def _decoder_steps(tokenizer_json: str) -> frozenset[str]:
    decoder = json.loads(tokenizer_json).get("decoder") or {}
    steps = frozenset(str(step["type"]) for step in decoder.get("decoders", [decoder]) if "type" in step)
    if not steps & {"ByteLevel", "ByteFallback"}:
        raise ModelError("the tokenizer is neither byte-level nor byte-fallback")
    return steps


def _bytes_by_id(vocab: Mapping[str, int], special: Mapping[int, str], steps: frozenset[str]) -> list[bytes]:
    table = [b""] * (max(vocab.values(), default=-1) + 1)
    byte_of = _byte_of_character()
    for piece, index in vocab.items():
        if index not in special:
            table[index] = _level_bytes(piece, byte_of) if "ByteLevel" in steps else _fallback_bytes(piece)
    return table


def _level_bytes(piece: str, byte_of: Mapping[str, int]) -> bytes:
    """A piece with a character that stands for no byte is an added token, and is its own text."""
    if all(character in byte_of for character in piece):
        return bytes(byte_of[character] for character in piece)
    return piece.encode("utf-8")


def _fallback_bytes(piece: str) -> bytes:
    byte = _FALLBACK_BYTE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace("▁", " ").encode("utf-8")


def _byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes of Latin-1 stand for themselves, the others follow from U+0100 in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + at): byte for at, byte in enumerate(others)}
