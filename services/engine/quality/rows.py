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
    expected, found = _log_softmax(reference), _log_softmax(served)
    at = np.arange(len(following)), np.asarray(following, np.int64)
    with np.errstate(invalid="ignore"):
        # A token without probability adds nothing, whatever the engine makes of it.
        terms = np.where(np.isneginf(expected), 0.0, np.exp(expected) * (expected - found))
    return Rows(
        divergence=terms.sum(axis=1),
        agrees=reference.argmax(axis=1) == served.argmax(axis=1),
        reference_loss=-expected[at],
        served_loss=-found[at],
    )


def joined(parts: Sequence[Rows]) -> Rows:
    """All rows of all parts, in order."""
    return Rows(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _log_softmax(logits: Floats) -> Doubles:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
