"""The requests of a worker that hold no blocks yet, or no more: first in rank, first to start."""

from bisect import insort

from services.core.progress import Progress


class Waiting:
    """Ordered by rank, the most important first; one that was preempted comes back to where its rank puts it."""

    def __init__(self) -> None:
        self._rows: list[Progress] = []

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def first(self) -> Progress | None:
        return self._rows[0] if self._rows else None

    def add(self, progress: Progress) -> None:
        insort(self._rows, progress, key=lambda row: row.rank)

    def remove(self, progress: Progress) -> None:
        self._rows.remove(progress)

    def check_invariants(self) -> None:
        """AssertionError if the books do not balance."""
        assert [row.rank for row in self._rows] == sorted(row.rank for row in self._rows), "queue out of order"
        assert not any(row.blocks for row in self._rows), "a waiting request holds blocks"
