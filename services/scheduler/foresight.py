"""By how much first tokens come later than was expected when their requests were let in. Pure.

What is promised is a bound that nearly all keep, and what is predicted is a mean. The factor between the two is learnt:
the 95th percentile of (what it took) / (what was expected), followed by a stochastic approximation in the logarithm
(Robbins and Monro, Annals of Mathematical Statistics 22, 1951), so that it needs no memory and follows the machine.
"""

from dataclasses import dataclass, field
from math import exp, log

KEPT = 0.95
"""The share of requests for which the bound is to hold."""
STEP = 0.05
FIRST = 2.0
"""Before anything is known: queues that the more important pass have long tails."""
LEAST, MOST = 1.0, 4.0
SLACK = 0.02
"""Seconds on both sides, so that times which are mostly messages say little."""


@dataclass(slots=True)
class Foresight:
    """A factor for each traffic class."""

    _logs: dict[str, float] = field(default_factory=dict)

    def factor(self, name: str) -> float:
        """By so much may an expected time be exceeded."""
        return exp(self._logs.get(name, log(FIRST)))

    def seen(self, name: str, expected: float, took: float) -> None:
        """A first token has come; seconds since its request arrived."""
        factor = self.factor(name)
        is_later = (took + SLACK) / (expected + SLACK) > factor
        moved = log(factor) + STEP * (KEPT if is_later else KEPT - 1)
        self._logs[name] = min(max(moved, log(LEAST)), log(MOST))
