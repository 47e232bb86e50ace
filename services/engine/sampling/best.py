"""The best token of each row, and whether the row can be trusted: one pass, and all that a greedy row needs.

The order of float32 numbers is that of their bits, read as whole numbers that grow with the number; so the extremes of
a block are found by whole-number instructions on many numbers at once, which a NaN does not confuse: it lies beyond an
infinity, on either side.
"""

import numpy as np
from numpy.typing import NDArray

from services.engine.jit import inner, outer

BLOCK = 512
"""Logits looked at as one; only the block with the best is looked at again."""

PLUS_INFINITY = 0x7F800000
MINUS_INFINITY = -0x7F800001
"""Keys of the infinities."""


@outer
def best_tokens(logits: NDArray[np.float32], tokens: NDArray[np.int64]) -> None:
    """Into `tokens` `[rows]` the id of each row's highest logit in `logits` `[rows, vocab]`, the lowest of equals.

    -1 for a row with NaN or +inf, or with nothing but -inf.
    """
    bits = logits.view(np.int32)
    for row in range(len(logits)):
        tokens[row] = _best(bits[row])


@inner
def _best(bits: NDArray[np.int32]) -> int:
    best, home = MINUS_INFINITY, -1
    for begin in range(0, len(bits), BLOCK):
        low, high = _extremes(bits[begin : begin + BLOCK])
        if low < MINUS_INFINITY or high >= PLUS_INFINITY:
            return -1
        # The key of -0.0 is -1; as a number it equals 0.0, whose key is 0.
        reached = 0 if high == -1 else int(high)
        if reached > best:
            best, home = reached, begin
    if home < 0:
        return -1
    at = home
    while _key(bits[at]) != best and not (best == 0 and _key(bits[at]) == -1):
        at += 1
    return at


@inner
def _extremes(bits: NDArray[np.int32]) -> tuple[np.int32, np.int32]:
    low = high = _key(bits[0])
    for at in range(1, len(bits)):
        key = _key(bits[at])
        low = key if key < low else low
        high = key if key > high else high
    return low, high


@inner
def _key(bits: np.int32) -> np.int32:
    """A whole number that grows with the float of these bits."""
    return np.int32(bits ^ ((bits >> 31) & 0x7FFFFFFF))
