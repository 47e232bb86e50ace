"""How long until places come free: predicted from how long requests keep theirs. Pure.

Every request is taken to stay as long as requests do on average (Qin et al., "Mooncake", arXiv 2407.00079, early
rejection by prediction). Those that have stayed longer leave evenly over the same time again, so that in a steady state
the prediction is Little's law whatever the spread of the lengths; after a burst it knows that nobody leaves at once.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable

_HALVINGS = 24
_MEMORY = 0.02
"""Weight of the latest stay, once there are as many as that is worth."""


class Drain:
    """Who has a place since when. Times are on one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._began: dict[Hashable, float] = {}
        self._times: list[float] = []
        """Of `_began`, in order."""
        self._stays = 0
        self.stay = 0.0
        """Mean seconds that a place is kept; 0 while nobody has left."""

    @property
    def running(self) -> int:
        return len(self._times)

    def began(self, key: Hashable, now: float) -> None:
        """A request has a place."""
        self.forget(key)
        self._began[key] = now
        insort(self._times, now)

    def ended(self, key: Hashable, now: float) -> None:
        """A request has left its place; nothing if it had none."""
        if (began := self.forget(key)) is not None:
            self._stays += 1
            self.stay += (now - began - self.stay) * max(1 / self._stays, _MEMORY)

    def forget(self, key: Hashable) -> float | None:
        """It lost its place in a way that says nothing of how long places are kept."""
        began = self._began.pop(key, None)
        if began is not None:
            del self._times[bisect_left(self._times, began)]
        return began

    def freed(self, after: float, capacity: int, now: float) -> float:
        """Places that are expected to come free within `after` seconds, all of `capacity` being taken again at once."""
        if self.stay <= 0:
            return 0.0
        overdue = bisect_right(self._times, now - self.stay)
        within = min(after, self.stay)
        due = bisect_right(self._times, now - self.stay + within) - overdue
        again = capacity * max(after - self.stay, 0.0) / self.stay
        return due + overdue * within / self.stay + again

    def wait(self, position: int, capacity: int, now: float) -> float:
        """Seconds until whoever is at this position in the queue, 1 being next, has a place; 0 while unknown."""
        needed = position - max(capacity - self.running, 0)
        if needed <= 0 or self.stay <= 0 or capacity <= 0:
            return 0.0
        if needed > self.running:
            return self.stay * (1 + (needed - self.running) / capacity)
        low, high = 0.0, self.stay
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self.freed(middle, capacity, now) >= needed else (middle, high)
        return high
