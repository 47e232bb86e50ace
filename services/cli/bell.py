"""A bell that any number of tasks wait for, so that waiting for a change needs no polling."""

import asyncio
from collections.abc import Callable


class Bell:
    """Rung after every change of what others wait for; used on one event loop."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Everybody who waits looks again."""
        self._rung.set()
        self._rung = asyncio.Event()

    async def until(self, condition: Callable[[], bool], seconds: float | None) -> bool:
        """True as soon as `condition` holds, False after `seconds`; None waits for ever.

        What `condition` raises ends the wait.
        """
        if condition():
            return True
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    await self._rung.wait()
        except TimeoutError:
            return condition()
        return True
