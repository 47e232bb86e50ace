"""How many requests of each importance come of late: those who will come before whoever waits. Pure.

Whoever waits behind others waits also for the more important who come meanwhile. If these take the share `r` of all
places, a wait grows to 1/(1 - r) of what it would be (the priority queue of Cobham, Operations Research 2, 1954).
"""

from dataclasses import dataclass, field
from math import exp

MEMORY_SECONDS = 10.0
MOST_SHARE = 0.8
"""A wait that is predicted longer than five times as long is not predicted at all."""


@dataclass(slots=True)
class Arrivals:
    """Counts that fade. Times are on one monotonic clock, in seconds."""

    _counts: dict[int, float] = field(default_factory=dict)
    _at: float = 0.0

    def came(self, level: int, now: float) -> None:
        """One of this importance is let in."""
        self._fade(now)
        self._counts[level] = self._counts.get(level, 0.0) + 1.0

    def per_second(self, level: int, now: float) -> float:
        """Of all that are more important than `level`."""
        self._fade(now)
        return sum(count for each, count in self._counts.items() if each > level) / MEMORY_SECONDS

    def share(self, level: int, now: float, stay: float, capacity: int) -> float:
        """Of the places, what the more important take who stay for `stay` seconds each."""
        return min(self.per_second(level, now) * stay / capacity, MOST_SHARE) if capacity else 0.0

    def _fade(self, now: float) -> None:
        kept = exp(-max(now - self._at, 0.0) / MEMORY_SECONDS)
        self._at = max(self._at, now)
        self._counts = {level: count * kept for level, count in self._counts.items()}
