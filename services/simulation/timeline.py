"""Virtual time: what happens when. Of what happens at one time, what was said first happens first."""

from collections.abc import Callable
from heapq import heappop, heappush


class Timeline:
    """Begins at 0 seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._entries = 0

    def at(self, time: float, act: Callable[[], None]) -> None:
        self._entries += 1
        heappush(self._heap, (time, self._entries, act))

    def advance(self) -> bool:
        """What comes next happens; False if nothing does."""
        if not self._heap:
            return False
        self.now, _, act = heappop(self._heap)
        act()
        return True
