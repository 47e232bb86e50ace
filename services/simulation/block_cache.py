"""Blocks of one worker or store: those in use, those kept for a hit, and room. Names are the trace's."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class WorkerBlocks:
    """KV blocks of a worker: named ones are shared and stay until room is needed, the longest unused go first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._held: dict[int, int] = {}
        """Named blocks in use, and by how many."""
        self._idle: OrderedDict[int, None] = OrderedDict()
        """Named blocks nobody uses, the longest unused first."""
        self._unnamed = 0

    @property
    def used(self) -> int:
        """Blocks that somebody holds."""
        return self._unnamed + len(self._held)

    @property
    def free(self) -> int:
        """Blocks that may be taken, those kept for a hit included."""
        return self._capacity - self.used

    def hits(self, names: Sequence[int]) -> int:
        """How many of the first blocks are here."""
        return next(
            (at for at, name in enumerate(names) if name not in self._held and name not in self._idle), len(names)
        )

    def fits(self, names: Sequence[int], unnamed: int, spare: int = 0) -> bool:
        """Whether these hits and so many new blocks may be taken and `spare` be left."""
        idle = sum(name in self._idle for name in names)
        return self.used + idle + unnamed + spare <= self._capacity

    def take(self, names: Sequence[int], unnamed: int) -> None:
        """Hits, and new blocks without a name."""
        for name in names:
            self._idle.pop(name, None)
            self._held[name] = self._held.get(name, 0) + 1
        self._unnamed += unnamed
        self._evict()

    def seal(self, name: int) -> bool:
        """A block that was taken without a name is full; False if its like is here already and it stays without."""
        if name in self._held or name in self._idle:
            return False
        self._held[name] = 1
        self._unnamed -= 1
        return True

    def release(self, names: Sequence[int], unnamed: int) -> None:
        """The end of a prompt is unused for longer than its beginning."""
        self._unnamed -= unnamed
        for name in reversed(names):
            self._held[name] -= 1
            if not self._held[name]:
                del self._held[name]
                self._idle[name] = None

    def check_invariants(self) -> None:
        """AssertionError if the books do not balance."""
        assert self._unnamed >= 0 and self.used + len(self._idle) <= self._capacity, "more blocks than there are"
        assert not self._held.keys() & self._idle.keys() and all(count > 0 for count in self._held.values())

    def _evict(self) -> None:
        while self.used + len(self._idle) > self._capacity and self._idle:
            self._idle.popitem(last=False)


class StoreBlocks:
    """Blocks of a store; the longest unused go first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def hits(self, names: Sequence[int]) -> int:
        """How many of the first blocks are here; they count as used."""
        count = next((at for at, name in enumerate(names) if name not in self._blocks), len(names))
        for name in reversed(names[:count]):
            self._blocks.move_to_end(name)
        return count

    def put(self, names: Iterable[int]) -> tuple[list[int], list[int]]:
        """(came, went)."""
        came = []
        for name in names:
            if name not in self._blocks:
                came.append(name)
            self._blocks[name] = None
            self._blocks.move_to_end(name)
        went = [self._blocks.popitem(last=False)[0] for _ in range(len(self._blocks) - self._capacity)]
        lost = set(went)
        new = set(came)
        return [name for name in came if name not in lost], [name for name in went if name not in new]
