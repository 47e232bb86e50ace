"""Which beginnings of prompts each worker has probably in its own cache, from what it was given to compute. Pure.

A worker's blocks are kept in order of use, the beginning of a chain always as recent as what follows it, so that what
is forgotten is always an end: whoever is said to have a block is said to have all before it.
"""

from collections import OrderedDict
from collections.abc import Sequence

from services.core.block_facts import ShortHash, short
from services.core.ids import BlockHash

MOST_BLOCKS = 1 << 19
"""Of all workers together; about 100 MB."""


class CachedPrefixes:
    """By worker address."""

    def __init__(self, most_blocks: int = MOST_BLOCKS) -> None:
        self._most_blocks = most_blocks
        self._total = 0
        self._recent: dict[str, OrderedDict[ShortHash, None]] = {}
        """Blocks of each worker, the least recently used first."""
        self._owners: dict[ShortHash, set[str]] = {}

    def __len__(self) -> int:
        return self._total

    def note(self, worker: str, hashes: Sequence[BlockHash], capacity: int) -> None:
        """The worker will have these blocks, a chain from its beginning; of all its blocks it keeps `capacity`."""
        recent = self._recent.setdefault(worker, OrderedDict())
        for each in reversed(hashes[:capacity]):
            name = short(each)
            if name in recent:
                recent.move_to_end(name)
            else:
                recent[name] = None
                self._owners.setdefault(name, set()).add(worker)
                self._total += 1
        while recent and (len(recent) > capacity or self._total > self._most_blocks):
            self._disown(worker, recent.popitem(last=False)[0])

    def forget(self, worker: str) -> None:
        """The worker is gone, and its cache with it."""
        for name in self._recent.pop(worker, ()):
            self._disown(worker, name)

    def longest(self, hashes: Sequence[BlockHash]) -> list[tuple[int, frozenset[str]]]:
        """(blocks, workers that have so many of the first ones), the longest first; nobody is named twice."""
        owners: list[set[str]] = []
        for each in hashes:
            having = self._owners.get(short(each))
            if not having:
                break
            owners.append(having)
        found: list[tuple[int, frozenset[str]]] = []
        longer = 0
        for count in range(len(owners), 0, -1):
            # Sets only shrink along a chain, so an equal size is an equal set.
            if len(owners[count - 1]) > longer:
                beyond = owners[count] if count < len(owners) else set[str]()
                found.append((count, frozenset(owners[count - 1] - beyond)))
                longer = len(owners[count - 1])
        return found

    def check_invariants(self) -> None:
        """AssertionError if the books do not balance."""
        held = {(worker, name) for worker, recent in self._recent.items() for name in recent}
        assert held == {(worker, name) for name, having in self._owners.items() for worker in having}, "books differ"
        assert len(held) == self._total <= self._most_blocks, "more blocks than there is room for"
        assert all(self._owners.values()), "a block of nobody is kept"

    def _disown(self, worker: str, name: ShortHash) -> None:
        having = self._owners[name]
        having.discard(worker)
        if not having:
            del self._owners[name]
        self._total -= 1
