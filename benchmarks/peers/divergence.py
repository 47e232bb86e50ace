"""How far an engine's distributions are from those of float32.

Owns the texts and the measure: the mean over positions of KL(reference || engine), in nats. Pure but for the files.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]

ROWS_AT_ONCE = 64
"""A row of logits in float64 is 400 KB; all of them at once would be too much memory to be polite."""

TEXTS = (
    "The lighthouse keeper wrote every evening in a thick grey book. He noted the wind, the height of the waves, and "
    "the names of the ships that passed, and he never wrote a word about himself.",
    "def running_mean(values, width):\n    total = sum(values[:width])\n    yield total / width\n"
    "    for old, new in zip(values, values[width:]):\n        total += new - old\n        yield total / width\n",
    "Q: A train leaves at 9:40 and arrives at 12:15. How long does the journey take?\nA: 2 hours and 35 minutes.",
    "2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47",
    "L'été dernier, nous avons traversé les montagnes à pied, et chaque soir il pleuvait.",
    "机器学习是一种让计算机从数据中学习的方法。",
)
"""Prose, code, a question, numbers, French, Chinese."""


def texts_as_ids(encode: Callable[[str], list[int]]) -> list[list[int]]:
    return [encode(text) for text in TEXTS]


def mean_divergence(reference: Path, engine: Path) -> float:
    """Mean KL(reference || engine) over all rows of two files of logits. Raises ValueError if they do not match."""
    expected, found = np.load(reference, mmap_mode="r"), np.load(engine, mmap_mode="r")
    if expected.shape != found.shape:
        raise ValueError(f"logits of shape {list(found.shape)} where the reference has {list(expected.shape)}")
    starts = range(0, len(expected), ROWS_AT_ONCE)
    return sum(
        float(divergence(expected[at : at + ROWS_AT_ONCE], found[at : at + ROWS_AT_ONCE]).sum()) for at in starts
    ) / len(expected)


def divergence(reference: Logits, engine: Logits) -> npt.NDArray[np.float64]:
    """KL(reference || engine) of each row, `[rows]`."""
    expected, found = _log_softmax(reference), _log_softmax(engine)
    return np.asarray((np.exp(expected) * (expected - found)).sum(axis=-1))


def _log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))
