"""A sum of which the past counts for less and less: what came of late, a second. Pure."""

from dataclasses import dataclass
from math import exp


@dataclass(slots=True)
class Fading:
    """Times are on one monotonic clock, in seconds."""

    memory: float
    """After so many seconds a 1/e of an amount is left."""
    _sum: float = 0.0
    _at: float = 0.0

    def add(self, amount: float, now: float) -> None:
        self._sum = self._after(now) + amount
        self._at = max(self._at, now)

    def per_second(self, now: float) -> float:
        """In a steady state, what comes in a second."""
        return self._after(now) / self.memory

    def _after(self, now: float) -> float:
        return self._sum * exp(-max(now - self._at, 0.0) / self.memory)
