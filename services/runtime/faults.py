"""Does what the fault plan says, at the seams. Off unless the settings plant something, and refused outside the test
profile; a seam where nothing is planted costs one dictionary look-up.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from services.core.fault_plan import NOTHING, Deed, Detour, FaultPlan, NarrowLink, Plant

T = TypeVar("T")

_SIGNALS = {"die": signal.SIGKILL, "pause": signal.SIGSTOP}


class Faults:
    """The seams of one process. `struck` is told of every deed, on the thread that passes the seam."""

    def __init__(self, plants: Mapping[str, Plant], struck: Callable[[str], None] = lambda seam: None) -> None:
        """Raises ValueError for what cannot be planted."""
        self._plan = FaultPlan(plants)
        self._struck = struck
        self._links = {seam: NarrowLink(rate) for seam in plants if (rate := self._plan.rate(seam)) is not None}

    def at(self, seam: str) -> Deed:
        """What happens at this passage, for the caller to do. What happens to the process is done here, at once."""
        deed = self._plan.at(seam)
        if deed is not NOTHING:
            self._struck(seam)
            if deed.fate:
                os.kill(os.getpid(), _SIGNALS[deed.fate])
        return deed

    async def wait(self, seam: str) -> Deed:
        """As `at`, after the delay."""
        deed = self.at(seam)
        if deed.delay:
            await asyncio.sleep(deed.delay)
        return deed

    def stall(self, seam: str) -> Deed:
        """As `wait`, for a thread that copies: nothing else runs on it meanwhile."""
        deed = self.at(seam)
        if deed.delay:
            time.sleep(deed.delay)
        return deed

    async def throttle(self, seam: str, size: int) -> None:
        """Returns once `size` bytes are across the link."""
        if seconds := self._seconds(seam, size):
            await asyncio.sleep(seconds)

    def throttle_thread(self, seam: str, size: int) -> None:
        """As `throttle`, for a thread that copies."""
        if seconds := self._seconds(seam, size):
            time.sleep(seconds)

    def passage(self, seam: str, corrupt: Callable[[T], T]) -> "Passage[T]":
        """For a stream of things that all pass `seam`; `corrupt` makes a wrong one of a right one."""
        return Passage(self, seam, corrupt)

    def _seconds(self, seam: str, size: int) -> float:
        link = self._links.get(seam)
        return link.seconds(size, time.monotonic()) if link is not None else 0.0


class Passage(Generic[T]):
    """One stream through one seam."""

    def __init__(self, faults: Faults, seam: str, corrupt: Callable[[T], T]) -> None:
        self._faults = faults
        self._seam = seam
        self._corrupt = corrupt
        self._detour: Detour[T] = Detour()

    async def through(self, thing: T) -> list[T]:
        """What leaves now that `thing` has come."""
        deed = await self._faults.wait(self._seam)
        return self._detour.after(self._corrupt(thing) if deed.corrupt else thing, deed)

    def rest(self) -> list[T]:
        """What was held back, now that nothing more comes."""
        return self._detour.rest()
