"""Draws one token from each of some rows: top-k, top-p of what top-k left, min-p, then the draw.

Tokens are ordered by (logit descending, id ascending). Every filter keeps a prefix of that order, and what is drawn is
the first token by which the prefix's cumulative weight exceeds the row's uniform number times its whole weight. A row
is drawn by itself: its token is a pure function of its own logits and parameters.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.engine.jit import inner, outer
from services.engine.sampling.reach import Goal, Reach, Row, reach, reach_within
from services.engine.sampling.weights import Bins, Values, Weights, fill, new_bins

GROUP = 64
"""Logits whose maximum stands for all of them when a short list for top-k is made."""


class Filters(NamedTuple):
    """Parameters of the rows that draw, each `[drawing rows]`."""

    temperature: Weights
    """At least `sample.GREEDY_BELOW`."""
    top_k: NDArray[np.int64]
    """At least 1; more than the vocabulary's size keeps all."""
    top_p: Weights
    min_p: Weights
    uniform: Weights
    """In [0, 1)."""


@outer
def draw_tokens(logits: Values, rows: NDArray[np.int64], filters: Filters, tokens: NDArray[np.int64]) -> None:
    """Draws for the rows `rows` of `logits` `[all rows, vocab]`.

    `tokens` `[all rows]` has each row's best token and gets what was drawn.
    """
    vocab = logits.shape[1]
    bins, ids = new_bins(vocab), np.empty(vocab, np.int64)
    for at in range(len(rows)):
        values = logits[rows[at]]
        best = np.float64(values[tokens[rows[at]]])
        # A short list has all that can be kept, so it changes nothing but the time.
        if filters.top_k[at] * 4 <= vocab // GROUP:
            size = _short_list(values, filters.top_k[at], ids)
            tokens[rows[at]] = ids[_place(values[ids[:size]], best, bins, filters, at)]
        else:
            tokens[rows[at]] = _place(values, best, bins, filters, at)


@inner
def _place(values: Values, best: float, bins: Bins, filters: Filters, at: int) -> int:
    """Place of the drawn token among `values`, which are in the order of their ids."""
    fill(bins, values, best, filters.temperature[at])
    row = Row(values, bins.weights[: len(values)])
    kept = reach(row, bins, Goal(np.inf, filters.top_k[at]))
    if filters.top_p[at] < 1.0:
        kept = reach(row, bins, Goal(filters.top_p[at] * kept.mass, kept.tokens))
    if filters.min_p[at] > 0.0:
        likely = _count_likely(row.weights, filters.min_p[at])
        if likely < kept.tokens:
            kept = reach(row, bins, Goal(np.inf, likely))
    # The first that exceeds a number is the first that reaches the next larger one.
    goal = np.nextafter(filters.uniform[at] * kept.mass, np.inf)
    return reach(row, bins, Goal(goal, kept.tokens)).last


@inner
def _count_likely(weights: Weights, min_p: float) -> int:
    """Tokens that weigh at least `min_p`; the best always does."""
    count = 0
    for weight in weights:
        count += weight >= min_p
    return max(count, 1)


@inner
def _short_list(values: Values, top_k: int, ids: NDArray[np.int64]) -> int:
    """Into `ids`, in order, tokens among which the `top_k` likeliest are; how many they are.

    Of the maxima of disjoint groups the k-th largest is at most the k-th largest logit.
    """
    maxima = np.empty(len(values) // GROUP, np.float32)
    for group in range(len(maxima)):
        highest = values[group * GROUP]
        for at in range(group * GROUP + 1, (group + 1) * GROUP):
            highest = max(highest, values[at])
        maxima[group] = highest
    every = Row(maxima, np.zeros(len(maxima)))
    last = reach_within(every, np.arange(len(maxima)), Goal(np.inf, top_k), Reach(-1, 0.0, 0)).last
    size = 0
    for at in range(len(values)):
        ids[size] = at
        size += values[at] >= maxima[last]
    return size
