"""A chunk cut into pieces that are computed one after the other, where all at once would take too much memory."""

from collections.abc import Iterator
from dataclasses import replace

from services.core.plan import Chunk

LOGIT_ROWS = 64
"""Rows whose logits are in memory together: a row of a large vocabulary is 200 to 600 KB."""


def pieces(chunk: Chunk, most: int = LOGIT_ROWS) -> Iterator[Chunk]:
    """In order, each of at most `most` tokens, with the whole chunk's block table."""
    for at in range(0, len(chunk.tokens), most):
        yield replace(chunk, tokens=chunk.tokens[at : at + most], start=chunk.start + at)
