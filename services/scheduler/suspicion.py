"""Which requests may be what kills workers. Pure.

A request that was being computed when its worker died is a suspect until it has got some tokens further than it was:
what kills a worker does so again at the same place. One that was there at two such deaths running is not tried again.
So that nobody is condemned with it, suspects are begun anew one at a time on each worker, for as long as that takes
no longer than a bounded time: where workers die of other things, pauses are longer by no more than that.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

HolderT = TypeVar("HolderT", bound=Hashable)

CLEARED_TOKENS = 8
"""More than can be under way between a worker and the scheduler when the worker dies."""


@dataclass(slots=True)
class Deaths:
    """Deaths of workers that one request was there for, without getting on between them."""

    most: int
    """After so many it is not tried again."""
    _count: int = field(default=0, init=False)
    _emitted: int = field(default=0, init=False)
    """Tokens of the answer at the latest."""

    def is_suspect(self, emitted: int) -> bool:
        """Whether it has not got on since; `emitted` tokens of its answer are known."""
        return self._count > 0 and emitted < self._emitted + CLEARED_TOKENS

    def died(self, emitted: int) -> bool:
        """Its worker died while it computed the request; True if the request may be tried again."""
        self._count = self._count + 1 if self.is_suspect(emitted) else 1
        self._emitted = emitted
        return self._count < self.most


class Trials(Generic[HolderT]):
    """Suspects that wait for their turn, and those that have it."""

    def __init__(self, seconds: float) -> None:
        """A suspect waits for its turn for so long at most."""
        self._seconds = seconds
        self._until: dict[HolderT, float] = {}
        """When each suspect's waiting is over."""
        self._on: dict[HolderT, frozenset[str]] = {}
        """Those that have begun: their workers."""

    def suspected(self, holder: HolderT, now: float) -> None:
        """Its worker died; it waits for another place."""
        self._on.pop(holder, None)
        self._until[holder] = now + self._seconds

    def closed_to(self, holder: HolderT, now: float) -> frozenset[str]:
        """Workers that `holder` should not begin on now, because another suspect is being tried there."""
        if now >= self._until.get(holder, 0.0):
            return frozenset()
        return frozenset[str]().union(*self._on.values())

    def began(self, holder: HolderT, workers: Iterable[str]) -> None:
        """It has a place; nothing if it is no suspect."""
        if holder in self._until:
            self._on[holder] = frozenset(workers)

    def tried(self) -> tuple[HolderT, ...]:
        """Those that have begun."""
        return tuple(self._on)

    def over(self, holder: HolderT) -> None:
        """It is no suspect any more, or at its end."""
        self._on.pop(holder, None)
        self._until.pop(holder, None)

    def next_end(self, now: float) -> float | None:
        """When the next of those that wait for their turn will have waited for long enough."""
        ends = (until for holder, until in self._until.items() if holder not in self._on and until > now)
        return min(ends, default=None)
