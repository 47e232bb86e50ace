"""How many requests of each importance come of late: those who will come before whoever waits. Pure.

Whoever waits behind others waits also for the more important who come meanwhile. If these take the share `r` of all
places, a wait grows to 1/(1 - r) of what it would be (the priority queue of Cobham, Operations Research 2, 1954).
"""

from dataclasses import dataclass, field

from services.scheduler.fading import Fading

MEMORY_SECONDS = 10.0
MOST_SHARE = 0.8
"""A wait that is predicted longer than five times as long is not predicted at all."""


@dataclass(slots=True)
class Arrivals:
    """Times are on one monotonic clock, in seconds."""

    _levels: dict[int, Fading] = field(default_factory=dict)

    def came(self, level: int, now: float) -> None:
        """One of this importance is let in."""
        self._levels.setdefault(level, Fading(MEMORY_SECONDS)).add(1.0, now)

    def share(self, level: int, now: float, stay: float, capacity: int) -> float:
        """Of the places, what those take who are more important than `level` and stay for `stay` seconds each."""
        if not capacity:
            return 0.0
        rate = sum(came.per_second(now) for each, came in self._levels.items() if each > level)
        return min(rate * stay / capacity, MOST_SHARE)
