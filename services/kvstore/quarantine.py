"""When the pages of a lost writer may be lent again: once its process has let go of the slot of that session.

A worker keeps the slot locked as long as a copy of its may run, and the system unlocks it when the process ends. So it
is enough to look, now and then, while a lost session's slot is held.
"""

import asyncio
from collections.abc import Callable

from services.core.handoff import Party

LOOK_SECONDS = 0.1


class QuarantineWatch:
    """Sessions that are lost and may still be copied for."""

    def __init__(self, is_slot_held: Callable[[int], bool]) -> None:
        self._is_slot_held = is_slot_held
        self._lost: dict[str, list[Party]] = {}
        """By process, in the order of their numbers."""
        self._changed = asyncio.Event()

    def add(self, party: Party) -> None:
        """Its session has ended; its slot is its number."""
        self._lost.setdefault(party.incarnation, []).append(party)
        self._changed.set()

    @property
    def is_empty(self) -> bool:
        return not self._lost

    def look(self) -> list[Party]:
        """For every process of which more is known than before, the first session before which none copies any more."""
        quiet = []
        for incarnation, parties in tuple(self._lost.items()):
            before = None
            while parties and not self._is_slot_held(parties[0].number):
                before = parties.pop(0).number + 1
            if before is not None:
                quiet.append(Party(before, incarnation))
            if not parties:
                del self._lost[incarnation]
        return quiet

    async def keep(self, quiet: Callable[[Party], None]) -> None:
        """Looks and tells, for ever."""
        while True:
            await self._changed.wait()
            for party in self.look():
                quiet(party)
            if self.is_empty:
                self._changed.clear()
            else:
                await asyncio.sleep(LOOK_SECONDS)
