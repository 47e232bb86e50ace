"""A call at a time that may be put off or called off."""

import asyncio
import time
from collections.abc import Callable


class Alarm:
    """Rings once for each time it is set to; set anew, it forgets the time before."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None

    def set(self, due: float | None) -> None:
        """On the monotonic clock; None calls it off."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if due is not None:
            self._handle = asyncio.get_running_loop().call_later(max(due - time.monotonic(), 0.0), self._ring)
