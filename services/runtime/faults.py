"""Planted delays for drills and tests. Off unless the settings name a seam, and refused outside the test profile."""

import asyncio
from collections.abc import Mapping


class Faults:
    """Seams by name; a seam that is not named costs one dictionary look-up."""

    def __init__(self, delays: Mapping[str, float]) -> None:
        self._delays = dict(delays)

    def delay(self, seam: str) -> float:
        """Seconds to hold up at `seam`; 0 if nothing is planted there."""
        return self._delays.get(seam, 0.0)

    async def pause(self, seam: str) -> None:
        """Waits out what is planted at `seam`, if anything."""
        if seconds := self.delay(seam):
            await asyncio.sleep(seconds)
