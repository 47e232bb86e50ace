"""A byte-level BPE tokenizer from GGUF metadata.

The metadata names how text is split before merging by a tag only (`tokenizer.ggml.pre`), so the splits of the tags we
know are written here and any other tag is refused: a wrong split gives valid, different ids. Sources: llama.cpp
`llama-vocab.cpp` and the tokenizer.json of a model of each tag.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from services.modelfiles.errors import ModelError
from services.modelfiles.fields import Fields

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS_AND_SINGLE_DIGITS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_WORDS_AND_THREE_DIGITS = _WORDS_AND_SINGLE_DIGITS.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

_CONTROL, _USER_DEFINED = 3, 4
"""Values of `tokenizer.ggml.token_type` for tokens that are matched as a whole in text."""


@dataclass(frozen=True, slots=True)
class _Tag:
    """How text is prepared before the merges."""

    splits: tuple[str, ...]
    """Each splits the pieces of the one before; what does not match stays as it is."""
    composed: bool = False
    """Text is brought to NFC first."""
    whole_words_first: bool = False
    """A word that is a token needs no merges."""
    adds_bos: bool = False
    """Where the metadata does not say."""


_TAGS = {
    "smollm": _Tag((r"\p{N}", _GPT2)),
    "gpt-2": _Tag((_GPT2,)),
    "default": _Tag((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "qwen2": _Tag((_WORDS_AND_SINGLE_DIGITS,), composed=True),
    "llama-bpe": _Tag((_WORDS_AND_THREE_DIGITS,), whole_words_first=True, adds_bos=True),
}


def tokenizer_from_gguf(metadata: Fields) -> Tokenizer:
    """Raises `ModelError` for another kind of tokenizer, an unknown tag, or lists that do not fit together."""
    tag = _tag(metadata)
    pieces = _strings(metadata, "tokenizer.ggml.tokens")
    merges = [_pair(metadata, merge) for merge in _strings(metadata, "tokenizer.ggml.merges")]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    if len(vocab) != len(pieces):
        raise ModelError(f"{metadata.origin}: tokenizer.ggml.tokens names a token twice")
    try:
        model = models.BPE(vocab=vocab, merges=merges, ignore_merges=tag.whole_words_first)
    except Exception as error:  # the library raises nothing narrower
        raise ModelError(f"{metadata.origin}: tokenizer.ggml.merges does not fit tokenizer.ggml.tokens") from error
    tokenizer = Tokenizer(model)
    if tag.composed:
        tokenizer.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(split), behavior="isolated") for split in tag.splits]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    _add_whole_tokens(tokenizer, pieces, _types(metadata, len(pieces)))
    return tokenizer


def adds_bos(metadata: Fields) -> bool:
    """Whether a plain prompt begins with the beginning-of-text token."""
    return metadata.flag("tokenizer.ggml.add_bos_token", _tag(metadata).adds_bos)


def _tag(metadata: Fields) -> _Tag:
    kind = metadata.text("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ModelError(f"{metadata.origin}: tokenizer.ggml.model {kind} is not supported; gpt2 (byte-level BPE) is")
    name = metadata.text("tokenizer.ggml.pre", "default")
    if name not in _TAGS:
        raise ModelError(f"{metadata.origin}: tokenizer.ggml.pre {name} is unknown; {', '.join(_TAGS)} are known")
    return _TAGS[name]


def _strings(metadata: Fields, name: str) -> list[str]:
    value = metadata.get(name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ModelError(f"{metadata.origin}: {name} must be a list of strings")
    return value


def _pair(metadata: Fields, merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        raise ModelError(f"{metadata.origin}: tokenizer.ggml.merges must hold pairs")
    return left, right


def _types(metadata: Fields, count: int) -> Sequence[int]:
    types = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(types, list) or len(types) != count:
        raise ModelError(f"{metadata.origin}: tokenizer.ggml.token_type must have one entry per token")
    return types


def _add_whole_tokens(tokenizer: Tokenizer, pieces: Sequence[str], types: Sequence[int]) -> None:
    control = [
        AddedToken(piece, special=True, normalized=False)
        for piece, kind in zip(pieces, types, strict=True)
        if kind == _CONTROL
    ]
    tokenizer.add_special_tokens(control)
    own = [
        AddedToken(piece, special=False, normalized=False)
        for piece, kind in zip(pieces, types, strict=True)
        if kind == _USER_DEFINED
    ]
    tokenizer.add_tokens(own)
