"""Keys in order of rank: the first, and any of them out of the middle, in O(log n)."""

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT")
Rank = tuple[float, int]
"""What counts, and a number that makes it unique: keys themselves are never compared."""

_SPARE = 16


class Ranking(Generic[KeyT]):
    """Entries that no longer count stay in the heap until they come to its top, or until they are the most of it."""

    def __init__(self) -> None:
        self._ranks: dict[KeyT, Rank] = {}
        self._heap: list[tuple[Rank, KeyT]] = []

    def __len__(self) -> int:
        return len(self._ranks)

    def __contains__(self, key: object) -> bool:
        return key in self._ranks

    def put(self, key: KeyT, rank: Rank) -> None:
        """A new key, or another rank for one that is there."""
        self._ranks[key] = rank
        heappush(self._heap, (rank, key))
        if len(self._heap) > 2 * len(self._ranks) + _SPARE:
            self._heap = [(rank, key) for key, rank in self._ranks.items()]
            heapify(self._heap)

    def discard(self, key: KeyT) -> None:
        """Nothing if it is not there."""
        self._ranks.pop(key, None)

    def first(self) -> KeyT | None:
        """The key of the lowest rank."""
        while self._heap:
            rank, key = self._heap[0]
            if self._ranks.get(key) == rank:
                return key
            heappop(self._heap)
        return None

    def rank(self, key: KeyT) -> Rank:
        """KeyError if it is not there."""
        return self._ranks[key]

    def ordered(self) -> list[KeyT]:
        """All of them, the lowest rank first: for few."""
        return sorted(self._ranks, key=self._ranks.__getitem__)

    def clear(self) -> None:
        self._ranks.clear()
        self._heap.clear()
