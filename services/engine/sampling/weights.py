"""How likely a row's tokens are, relative to the best one: weights in [0, 1], in float64, and a coarse order of them.

    weight = exp((logit - best) / temperature) = 2^(-step / STEPS) × exp(rest),   |rest| ≤ ln 2 / (2 STEPS)

The power comes from a table and the rest from a short Taylor series (relative error about 1e-15). The step is also the
token's *bin*: tokens of a lower bin have higher logits, so a row is put in order by counting into bins, and only the
tokens of a bin where something is decided are looked at again.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.engine.jit import inner, outer

FAINT = 45.0
"""Tokens more than this (in nats) below the best weigh nothing: all of a vocabulary together would weigh less than the
rounding of the others' sum, so no draw of 53 bits can mean them."""

STEPS = 32
"""Bins for each halving of the weight."""

BINS = math.ceil(FAINT * STEPS / math.log(2)) + 1
"""The last is for tokens that weigh nothing."""

POWERS = np.append(2.0 ** (-np.arange(BINS - 1) / STEPS), 0.0)
STEP = math.log(2) / STEPS

Values = NDArray[np.float32]
Weights = NDArray[np.float64]


class Bins(NamedTuple):
    """A row's tokens, weighed and counted into bins; the first bin has the best."""

    weights: Weights
    """`[tokens]`"""
    of: NDArray[np.int32]
    """`[tokens]`: the bin of each."""
    mass: Weights
    """`[BINS]`: sum of the weights."""
    tokens: NDArray[np.int64]
    """`[BINS]`: how many tokens."""


@inner
def new_bins(tokens: int) -> Bins:
    return Bins(np.empty(tokens), np.empty(tokens, np.int32), np.empty(BINS), np.empty(BINS, np.int64))


@inner
def fill(bins: Bins, values: Values, best: float, temperature: float) -> None:
    """Weighs `values`, which hold neither NaN nor anything above `best`, into the first places of `bins`."""
    _weigh(bins, values, best, STEPS / (temperature * math.log(2)))
    bins.mass[:] = 0.0
    bins.tokens[:] = 0
    for at in range(len(values)):
        step = bins.of[at]
        bins.mass[step] += bins.weights[at]
        bins.tokens[step] += 1


@inner
def _weigh(bins: Bins, values: Values, best: float, steps_per_logit: float) -> None:
    """Apart from the counting, so that it is done for many tokens at once."""
    for at in range(len(values)):
        depth = (best - np.float64(values[at])) * steps_per_logit
        depth = depth if depth < BINS - 1 else np.float64(BINS - 1)
        step = np.int32(depth + 0.5)
        rest = (step - depth) * STEP
        bins.of[at] = step
        bins.weights[at] = POWERS[step] * _exp(rest)


@inner
def _exp(x: float) -> float:
    """The first seven terms of the exponential series."""
    return 1.0 + x * (1.0 + x * (1 / 2 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + x * (1 / 720))))))


@outer
def log_totals(logits: Values, rows: NDArray[np.int64], best: NDArray[np.int64], totals: Weights) -> None:
    """Into `totals` `[rows]` the logarithm of the sum of exp(logit - best logit) over each row of `rows`."""
    bins = new_bins(logits.shape[1])
    for at in range(len(rows)):
        values = logits[rows[at]]
        fill(bins, values, np.float64(values[best[at]]), 1.0)
        totals[at] = math.log(bins.mass.sum())
