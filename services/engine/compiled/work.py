"""A plan as the arrays a step reads: one line per row, tables of blocks, and the units that attention works in."""

from collections.abc import Sequence

import numpy as np

from services.core.plan import Chunk
from services.engine.compiled.kernels.attention import TOKENS
from services.engine.compiled.kernels.step_data import Work


def work_of(chunks: Sequence[Chunk], block_size: int) -> Work:
    """Rows are the chunks' tokens, chunk after chunk. Raises IndexError if a table is too short for its chunk."""
    # Lists first: a step of a few rows is made sooner so than by as many array operations.
    positions: list[int] = []
    requests: list[int] = []
    units: list[tuple[int, int]] = []
    kept: list[int] = []
    tables = np.zeros((len(chunks), max(len(chunk.blocks) for chunk in chunks)), np.int64)
    for number, chunk in enumerate(chunks):
        length, first = len(chunk.tokens), len(positions)
        if len(chunk.blocks) * block_size < chunk.start + length:
            raise IndexError("a chunk reaches beyond its block table")
        tables[number, : len(chunk.blocks)] = chunk.blocks
        positions += range(chunk.start, chunk.start + length)
        requests += [number] * length
        units += [(first + at, min(TOKENS, length - at)) for at in range(0, length, TOKENS)]
        if chunk.draw is not None:
            kept.append(first + length - 1)
    return Work(
        tokens=np.array([token for chunk in chunks for token in chunk.tokens], np.int64),
        positions=np.array(positions, np.int64),
        requests=np.array(requests, np.int64),
        tables=tables,
        units=np.array(units, np.int64),
        kept=np.array(kept, np.int64),
        last_units=np.array([(row, 1) for row in kept], np.int64).reshape(-1, 2),
        has_logits=True,
    )


def keeping_all(work: Work, has_logits: bool) -> Work:
    """The same, with every row computed to the end."""
    return work._replace(kept=np.arange(work.tokens.size), last_units=work.units, has_logits=has_logits)
