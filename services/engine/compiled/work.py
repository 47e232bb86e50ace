"""A plan as the arrays a step reads: one line per row, tables of blocks, and the units that attention works in."""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from services.core.plan import Chunk
from services.engine.compiled.kernels.attention import TOKENS
from services.engine.compiled.kernels.step import Work


def work_of(chunks: Sequence[Chunk], block_size: int) -> Work:
    """Rows are the chunks' tokens, chunk after chunk. Raises IndexError if a table is too short for its chunk."""
    lengths = [len(chunk.tokens) for chunk in chunks]
    starts = [chunk.start for chunk in chunks]
    width = max(len(chunk.blocks) for chunk in chunks)
    if any(
        len(chunk.blocks) * block_size < start + length
        for chunk, start, length in zip(chunks, starts, lengths, strict=True)
    ):
        raise IndexError("a chunk reaches beyond its block table")
    tables = np.zeros((len(chunks), width), np.int64)
    for line, chunk in zip(tables, chunks, strict=True):
        line[: len(chunk.blocks)] = chunk.blocks
    ends = np.cumsum(lengths)
    requests = np.repeat(np.arange(len(chunks)), lengths)
    positions = np.arange(ends[-1]) + np.repeat(np.array(starts) - ends + lengths, lengths)
    kept = np.array([end - 1 for end, chunk in zip(ends, chunks, strict=True) if chunk.draw is not None], np.int64)
    return Work(
        tokens=np.fromiter(chain.from_iterable(chunk.tokens for chunk in chunks), np.int64, ends[-1]),
        positions=positions,
        requests=requests,
        tables=tables,
        units=_units(ends, lengths),
        kept=kept,
        last_units=np.stack([kept, np.ones_like(kept)], axis=1),
        has_logits=True,
    )


def keeping_all(work: Work, has_logits: bool) -> Work:
    """The same, with every row computed to the end."""
    return work._replace(kept=np.arange(work.tokens.size), last_units=work.units, has_logits=has_logits)


def _units(ends: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
    """`[units, 2]`: first row and rows, no more than `TOKENS`, all of one chunk."""
    pairs = [
        (end - length + at, min(TOKENS, length - at))
        for end, length in zip(ends.tolist(), lengths, strict=True)
        for at in range(0, length, TOKENS)
    ]
    return np.array(pairs, np.int64)
