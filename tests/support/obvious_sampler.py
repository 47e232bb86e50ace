"""A sampler that is slow and obvious, one row at a time: whole rows sorted, sums in float64, sets and lists."""

import math
from collections import Counter
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from services.core.draw import uniform
from services.core.plan import Draw, History

EDGE = 1e-12
"""Where a sum is so close to a limit, its last digit decides; both outcomes are right then."""


def obvious_tokens(logits: NDArray[np.float32], draw: Draw) -> set[int | None]:
    """What may be drawn from a row: one token, or more where the outcome hangs on the last digit of a sum."""
    if any(math.isnan(logit) or logit == math.inf for logit in logits):
        return {None}
    row = edited(logits, draw)
    order = sorted((token for token in range(len(row)) if row[token] > -math.inf), key=lambda t: (-row[t], t))
    if not order:
        return {None}
    if draw.sampling.temperature < 1e-5:
        return {order[0]}
    weights = [math.exp((row[token] - row[order[0]]) / draw.sampling.temperature) for token in order]
    return {order[_rank(weights, draw, nudge)] for nudge in (-EDGE, 0.0, EDGE)}


def edited(logits: NDArray[np.float32], draw: Draw) -> list[float]:
    """The row after bans, bias and penalties, each rounded to float32."""
    sampling = draw.sampling
    row = [float(logit) for logit in logits]
    for token in draw.banned:
        if 0 <= token < len(row):
            row[token] = -math.inf
    for token, bias in sampling.logit_bias:
        if 0 <= token < len(row):
            row[token] = float(np.float32(row[token] + bias))
    history = draw.history or History((), ())
    for token in {*history.prompt, *history.answer}:
        if 0 <= token < len(row):
            penalty = sampling.repetition_penalty
            row[token] = float(np.float32(row[token] / penalty if row[token] > 0 else row[token] * penalty))
    for token, count in Counter(history.answer).items():
        if 0 <= token < len(row):
            row[token] = float(np.float32(row[token] - sampling.frequency_penalty * count - sampling.presence_penalty))
    return row


def obvious_logprobs(logits: NDArray[np.float32]) -> list[tuple[int, float]]:
    """(id, log probability) of every token that has one, the most likely first."""
    best = max(map(float, logits))
    total = math.log(math.fsum(math.exp(float(logit) - best) for logit in logits))
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    return [(token, float(logits[token]) - best - total) for token in order if logits[token] > -math.inf]


def _rank(weights: list[float], draw: Draw, nudge: float) -> int:
    """The place in the order of the token that is drawn, with every limit moved by `nudge`."""
    sampling = draw.sampling
    kept = min(sampling.top_k or len(weights), len(weights))
    if sampling.top_p < 1:
        goal = (sampling.top_p + nudge) * math.fsum(weights[:kept])
        before = [0.0, *accumulate(weights)]
        kept = max(1, sum(before[rank] < goal for rank in range(kept)))
    kept = max(1, sum(weight >= sampling.min_p + nudge for weight in weights[:kept]))
    goal = (uniform(sampling.seed, draw.position) + nudge) * math.fsum(weights[:kept])
    return next((rank for rank, mass in enumerate(accumulate(weights[:kept])) if mass > goal), kept - 1)
