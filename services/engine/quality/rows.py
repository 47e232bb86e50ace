"""Distributions over the next token, row by row: those of an engine against those of the reference. Pure.

All in float64: with weights as in the file, both agree to seven digits, and the difference is what is asked for.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


class Rows(NamedTuple):
    """Of some rows; each array is `[rows]` unless it says otherwise."""

    divergence: Doubles
    """KL(reference || engine) in nats (Kullback and Leibler 1951)."""
    agrees: npt.NDArray[np.bool_]
    """Whether both find the same token most likely."""
    reference_loss: Doubles
    """`[rows that have a next token]`: minus the logarithm of its probability."""
    served_loss: Doubles


def compared(reference: Floats, served: Floats, following: Sequence[int]) -> Rows:
    """Of logits `[rows, vocab]`; `following` has each row's next token, fewer where the prompt ends before."""
    expected, found = _Powers.of(reference), _Powers.of(served)
    with np.errstate(invalid="ignore"):
        apart = expected.shifted - found.shifted
    if np.isneginf(reference.min()):
        # A token without probability adds nothing, whatever the engine makes of it.
        apart[expected.powers == 0] = 0
    # The sum of p · (log p - log q): the logarithms of the two sums are the same for all tokens of a row.
    divergence = np.einsum("ij,ij->i", expected.powers, apart) / expected.sums
    return Rows(
        divergence=divergence + np.log(found.sums) - np.log(expected.sums),
        agrees=reference.argmax(axis=1) == served.argmax(axis=1),
        reference_loss=expected.losses(following),
        served_loss=found.losses(following),
    )


def joined(parts: Sequence[Rows]) -> Rows:
    """All rows of all parts, in order."""
    return Rows(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


class _Powers(NamedTuple):
    """A softmax in the making: probabilities are `powers ÷ sums`."""

    shifted: Doubles
    """`[rows, vocab]`: logits less the row's largest."""
    powers: Doubles
    sums: Doubles
    """`[rows]`."""

    @classmethod
    def of(cls, logits: Floats) -> "_Powers":
        shifted = logits.astype(np.float64)
        shifted -= shifted.max(axis=1, keepdims=True)
        powers = np.exp(shifted)
        return cls(shifted, powers, powers.sum(axis=1))

    def losses(self, following: Sequence[int]) -> Doubles:
        """Minus the logarithm of each next token's probability."""
        rows = np.arange(len(following))
        return np.asarray(np.log(self.sums[rows]) - self.shifted[rows, np.asarray(following, np.int64)])
