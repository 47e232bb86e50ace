"""The vocabulary in GGUF metadata: pieces and what kind each is, whatever algorithm joins them."""

from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer

from services.modelfiles.errors import ModelError
from services.modelfiles.fields import Fields

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
"""Values of `tokenizer.ggml.token_type`."""


@dataclass(frozen=True, slots=True)
class GGUFVocabulary:
    """Pieces by id. `read` makes sure that they are as many as their types, and that none is there twice."""

    pieces: tuple[str, ...]
    types: tuple[int, ...]

    @staticmethod
    def read(metadata: Fields) -> "GGUFVocabulary":
        """Raises `ModelError` if the lists are missing or do not fit together."""
        pieces = strings(metadata, "tokenizer.ggml.tokens")
        if len(set(pieces)) != len(pieces):
            raise ModelError(f"{metadata.origin}: tokenizer.ggml.tokens names a token twice")
        types = metadata.get("tokenizer.ggml.token_type")
        if not isinstance(types, list) or len(types) != len(pieces):
            raise ModelError(f"{metadata.origin}: tokenizer.ggml.token_type must have one entry per token")
        return GGUFVocabulary(tuple(pieces), tuple(types))

    @property
    def ids(self) -> dict[str, int]:
        return {piece: index for index, piece in enumerate(self.pieces)}

    def joinable(self) -> frozenset[str]:
        """Pieces that text may be joined into; the others only ever stand for themselves."""
        return frozenset(self._of(_NORMAL, _USER_DEFINED))

    def add_whole_tokens(self, tokenizer: Tokenizer) -> None:
        """Tokens that are matched as a whole in text: control tokens, and words that were added later."""
        control = self._of(_CONTROL, _UNKNOWN)
        tokenizer.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in control])
        own = self._of(_USER_DEFINED)
        tokenizer.add_tokens([AddedToken(piece, special=False, normalized=False) for piece in own])

    def _of(self, *types: int) -> list[str]:
        return [piece for piece, kind in zip(self.pieces, self.types, strict=True) if kind in types]


def strings(metadata: Fields, name: str) -> list[str]:
    """Raises `ModelError` if the value is missing or no list of strings."""
    value = metadata.get(name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ModelError(f"{metadata.origin}: {name} must be a list of strings")
    return value
