"""A step runner that notes how long steps take and has some of them profiled."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from peers.step_profile import StepProfile
from services.core.plan import StepPlan, StepResult


class Executes(Protocol):
    def execute(self, plan: StepPlan) -> StepResult: ...


@dataclass(frozen=True, slots=True)
class Step:
    """One call of `execute`; times in seconds on the monotonic clock."""

    began: float
    ended: float
    rows: int
    is_decode: bool
    """All of its chunks are single tokens."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A step with what the loop does until the next one begins."""

    rows: int
    seconds: float
    outside: float
    """The share of `seconds` that is not in `execute`."""


def fullest_decodes(steps: Sequence[Step]) -> list[Turn]:
    """The decode steps with the most rows that another such step follows. Raises ValueError if there is none."""
    most = max((step.rows for step in steps if step.is_decode), default=0)
    pairs = [
        (step, following)
        for step, following in pairwise(steps)
        if step.is_decode and following.is_decode and step.rows == following.rows == most
    ]
    if not pairs:
        raise ValueError("no two full decode steps followed one another")
    return [
        Turn(most, following.began - step.began, (following.began - step.ended) / (following.began - step.began))
        for step, following in pairs
    ]


@dataclass(slots=True)
class StepClock:
    """Passes steps on; `steps` grows."""

    runner: Executes
    steps: list[Step] = field(default_factory=list)
    profile: StepProfile | None = None
    """Where decode steps of at least `profiled_rows` are counted; that slows them by a few percent."""
    profiled_rows: int = 1

    def execute(self, plan: StepPlan) -> StepResult:
        sizes = [len(chunk.tokens) for chunk in plan.chunks]
        is_decode = max(sizes) == 1
        execute = self.runner.execute
        began = time.monotonic()
        if self.profile is not None and is_decode and len(sizes) >= self.profiled_rows:
            result = self.profile.call(execute, plan)
        else:
            result = execute(plan)
        self.steps.append(Step(began, time.monotonic(), sum(sizes), is_decode))
        return result
