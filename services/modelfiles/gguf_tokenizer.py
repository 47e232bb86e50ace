"""A tokenizer from GGUF metadata: of the kinds there, byte-level BPE here and SentencePiece's next door.

The metadata names how text is split before merging by a tag only (`tokenizer.ggml.pre`), so the splits of the tags we
know are written here and any other tag is refused: a wrong split gives valid, different ids. Sources: llama.cpp
`llama-vocab.cpp` and the tokenizer.json of a model of each tag.
"""

from dataclasses import dataclass

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from services.modelfiles.errors import ModelError
from services.modelfiles.fields import Fields
from services.modelfiles.gguf_sentencepiece import sentencepiece_from_gguf
from services.modelfiles.gguf_vocabulary import GGUFVocabulary, strings

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS_AND_SINGLE_DIGITS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_WORDS_AND_THREE_DIGITS = _WORDS_AND_SINGLE_DIGITS.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

_CASED_WORDS_AND_SINGLE_DIGITS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_BYTE_LEVEL, _SENTENCEPIECE = "gpt2", "llama"
"""Values of `tokenizer.ggml.model`."""


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
    "tekken": _Tag((_CASED_WORDS_AND_SINGLE_DIGITS,), whole_words_first=True, adds_bos=True),
}


def tokenizer_from_gguf(metadata: Fields) -> Tokenizer:
    """Raises `ModelError` for another kind of tokenizer, an unknown tag, or lists that do not fit together."""
    return sentencepiece_from_gguf(metadata) if _kind(metadata) == _SENTENCEPIECE else _byte_level(metadata)


def adds_bos(metadata: Fields) -> bool:
    """Whether a plain prompt begins with the beginning-of-text token."""
    usual = True if _kind(metadata) == _SENTENCEPIECE else _tag(metadata).adds_bos
    return metadata.flag("tokenizer.ggml.add_bos_token", usual)


def _kind(metadata: Fields) -> str:
    kind = metadata.text("tokenizer.ggml.model")
    if kind not in (_BYTE_LEVEL, _SENTENCEPIECE):
        raise ModelError(
            f"{metadata.origin}: tokenizer.ggml.model {kind} is not supported; gpt2 (byte-level BPE) and llama "
            "(SentencePiece) are"
        )
    return kind


def _byte_level(metadata: Fields) -> Tokenizer:
    tag = _tag(metadata)
    vocabulary = GGUFVocabulary.read(metadata)
    merges = [_pair(metadata, merge) for merge in strings(metadata, "tokenizer.ggml.merges")]
    try:
        model = models.BPE(vocab=vocabulary.ids, merges=merges, ignore_merges=tag.whole_words_first)
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
    vocabulary.add_whole_tokens(tokenizer)
    return tokenizer


def _tag(metadata: Fields) -> _Tag:
    name = metadata.text("tokenizer.ggml.pre", "default")
    if name not in _TAGS:
        raise ModelError(f"{metadata.origin}: tokenizer.ggml.pre {name} is unknown; {', '.join(_TAGS)} are known")
    return _TAGS[name]


def _pair(metadata: Fields, merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        raise ModelError(f"{metadata.origin}: tokenizer.ggml.merges must hold pairs")
    return left, right
