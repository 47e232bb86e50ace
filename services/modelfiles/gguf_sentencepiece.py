"""A byte-fallback BPE tokenizer from GGUF metadata: SentencePiece's, as in Llama 2 and Mistral 7B.

There are no merges in the file but a score for each piece: of all neighbours that together are a piece, those of the
best score are joined first. That is a BPE whose merges are all the ways of making a piece, the best pieces first.
Source: llama.cpp `llama-vocab.cpp`, the tokenizer named `llama` there: a space is written `▁` and put before the text
and before whatever follows a control token, and a character that is no piece becomes its bytes.

Known limit: where two ways of making the same piece overlap in a text, SentencePiece takes the one further left, and a
BPE, here as in transformers, the one with the longer left part.
"""

import math

from tokenizers import Tokenizer, decoders, models, normalizers

from services.modelfiles.errors import ModelError
from services.modelfiles.fields import Fields
from services.modelfiles.gguf_vocabulary import GGUFVocabulary

_SPACE = "▁"
_BYTES = 256


def sentencepiece_from_gguf(metadata: Fields) -> Tokenizer:
    """Raises `ModelError` for lists that do not fit together or a vocabulary that lacks a byte."""
    vocabulary = GGUFVocabulary.read(metadata)
    ids = vocabulary.ids
    if any(f"<0x{byte:02X}>" not in ids for byte in range(_BYTES)):
        raise ModelError(f"{metadata.origin}: tokenizer.ggml.tokens lacks pieces for single bytes")
    merges = _merges(vocabulary, _scores(metadata, len(vocabulary.pieces)))
    # With a piece for every byte nothing is unknown, so that the model needs no token for it.
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, byte_fallback=True))
    is_prefixed = metadata.flag("tokenizer.ggml.add_space_prefix", True)
    marked = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), marked] if is_prefixed else [marked])
    joined = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    first = [decoders.Strip(content=" ", left=1, right=0)] if is_prefixed else []
    tokenizer.decoder = decoders.Sequence([*joined, *first])
    vocabulary.add_whole_tokens(tokenizer)
    return tokenizer


def _merges(vocabulary: GGUFVocabulary, scores: list[float]) -> list[tuple[str, str]]:
    """Every pair of pieces that is a piece, by falling score; equal ones in the order of the vocabulary."""
    joinable = vocabulary.joinable()
    ranked = sorted(zip(vocabulary.pieces, scores, strict=True), key=lambda piece: -piece[1])
    return [
        (piece[:cut], piece[cut:])
        for piece, _ in ranked
        if piece in joinable
        for cut in range(len(piece) - 1, 0, -1)
        if piece[:cut] in joinable and piece[cut:] in joinable
    ]


def _scores(metadata: Fields, count: int) -> list[float]:
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != count:
        raise ModelError(f"{metadata.origin}: tokenizer.ggml.scores must have one entry per token")
    if not all(isinstance(score, int | float) and math.isfinite(score) for score in scores):
        raise ModelError(f"{metadata.origin}: tokenizer.ggml.scores must hold finite numbers")
    return scores
