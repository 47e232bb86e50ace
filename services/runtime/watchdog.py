"""Notices an engine step that does not end. Such a worker still answers its sessions, so nobody else can tell.

Time is counted in looks and not by a clock: a process that was stopped as a whole, with its machine or by a signal, is
not to be blamed for the time in which nothing of it ran.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from services.core.errors import EngineFault
from services.core.plan import StepPlan

LOOKS = 10
"""In the least time after which a step counts as hung."""
TIMES = 10.0
"""A step is not given up before it has taken so many times what was predicted."""


@dataclass(slots=True)
class Watchdog:
    """Looks at what is being computed; `predicted` is the seconds that a step should take."""

    patience: float
    """Seconds that every step may take."""
    predicted: Callable[[StepPlan], float]
    _seen: StepPlan | None = field(default=None, init=False)
    _left: int = field(default=0, init=False)

    async def run(self, computing: Callable[[], StepPlan | None]) -> None:
        """For ever, until cancelled. Raises EngineFault for a step that does not end."""
        while True:
            await asyncio.sleep(self.patience / LOOKS)
            self.look(computing())

    def look(self, plan: StepPlan | None) -> None:
        """One look, a tenth of the patience after the one before. Raises EngineFault."""
        if plan is None or plan is not self._seen:
            self._seen = plan
            self._left = 0 if plan is None else self._looks(plan)
            return
        self._left -= 1
        if self._left <= 0:
            raise EngineFault("an engine step does not end; this worker stops")

    def _looks(self, plan: StepPlan) -> int:
        return math.ceil(max(self.patience, TIMES * self.predicted(plan)) / self.patience * LOOKS)
