"""Who of several is next, so that each gets its share of the work that is given out, however much it asks for.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): every member has a tag, the one with the lowest is next,
and what it is given moves its tag on by work / weight. One that comes begins at the tag served last, so it neither owes
for its absence nor has saved anything. Hence, whatever the speed at which work is given out:

- one that comes while others wait is next after at most one piece of work of each of them;
- of two that wait all the time, what they are given over their weights differs by at most the sum of their largest
  pieces over their weights.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

from services.scheduler.ranking import Ranking

MemberT = TypeVar("MemberT", bound=Hashable)


class FairShare(Generic[MemberT]):
    """Pure; remembers of who is absent only what it had beyond the others."""

    def __init__(self) -> None:
        self._served = 0.0
        """The tag served last."""
        self._count = 0
        self._present: Ranking[MemberT] = Ranking()
        self._ahead: Ranking[MemberT] = Ranking()
        """Those absent whose tag is beyond the one served last."""

    def __len__(self) -> int:
        return len(self._present)

    def first(self) -> MemberT | None:
        """Who is next."""
        return self._present.first()

    def ordered(self) -> list[MemberT]:
        """All that wait, who is next first."""
        return self._present.ordered()

    def join(self, member: MemberT) -> None:
        """It has something waiting; nothing if it is there already."""
        if member not in self._present:
            tag = self._ahead.rank(member)[0] if member in self._ahead else 0.0
            self._ahead.discard(member)
            self._put(self._present, member, max(tag, self._served))

    def leave(self, member: MemberT) -> None:
        """It has nothing waiting any more. When nobody has, all begin anew."""
        tag = self._present.rank(member)[0]
        self._present.discard(member)
        if not self._present:
            self._ahead.clear()
        elif tag > self._served:
            self._put(self._ahead, member, tag)

    def renew(self, member: MemberT) -> None:
        """It could not be served for a reason of its own, and has saved nothing by it."""
        if self._present.rank(member)[0] < self._served:
            self._put(self._present, member, self._served)

    def charge(self, member: MemberT, work: float) -> None:
        """It was given `work`, already divided by its weight."""
        tag = self._present.rank(member)[0]
        self._served = max(self._served, tag)
        self._put(self._present, member, tag + work)
        while (absent := self._ahead.first()) is not None and self._ahead.rank(absent)[0] <= self._served:
            self._ahead.discard(absent)

    def _put(self, ranking: Ranking[MemberT], member: MemberT, tag: float) -> None:
        self._count += 1
        ranking.put(member, (tag, self._count))
