"""What the time of a step goes to: calls of the engine's functions, and the compiled engine's own counters.

Owns the phases' names and which functions belong to which.

    linear, attention, sampling     as they say
    other                           norms, rotation, activations
    bookkeeping                     all that is not tensor work, in the engine and around it
    waiting                         of one compute thread for another
"""

import cProfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from services.core.plan import StepPlan, StepResult

Seconds = dict[str, float]
Ticks = Callable[[], Mapping[str, int]]
"""The compiled engine's counters, which only grow; all threads together."""

SAMPLING = {"sampling": frozenset({"sample.py:sample"})}
TORCH: Mapping[str, frozenset[str]] = {
    **SAMPLING,
    "linear": frozenset({"~:<built-in function linear>", "~:<built-in method torch._C._nn.linear>"}),
    "attention": frozenset({"attention.py:attend", "attention.py:store", "torch_backend.py:attend"}),
    "bookkeeping": frozenset({"batch.py:of", "runner.py:_result"}),
}
"""Phases of the torch engine as functions whose time, with all they call, is the phase's; none calls another. What
none claims is `other`."""

KERNEL = "kernel"
COMPILED: Mapping[str, frozenset[str]] = {**SAMPLING, KERNEL: frozenset({"threads.py:run"})}
"""So of the compiled engine, whose one call is divided further by its counters. What none claims is bookkeeping."""
OF_TICKS = {
    "linear": "linear",
    "head": "linear",
    "attention": "attention",
    "norm": "other",
    "heads": "other",
    "wait": "waiting",
}
"""Counter to phase; an unknown counter is `other`."""


@dataclass(slots=True)
class StepProfile:
    """Counts while steps are called through it."""

    phases: Mapping[str, frozenset[str]]
    rest: str
    """The phase of the time that `phases` do not claim."""
    ticks: Ticks | None = None
    _calls: cProfile.Profile = field(default_factory=cProfile.Profile)
    _ticks: Counter[str] = field(default_factory=Counter)

    def call(self, execute: Callable[[StepPlan], StepResult], plan: StepPlan) -> StepResult:
        before = Counter(self.ticks() if self.ticks else {})
        result = self._calls.runcall(execute, plan)
        self._ticks.update(self.ticks() if self.ticks else {})
        self._ticks.subtract(before)
        return result

    def seconds(self) -> Seconds:
        """By phase, of all steps together."""
        found = by_functions(self._calls, self.phases, self.rest)
        kernel = found.pop(KERNEL, 0.0)
        for phase, seconds in by_ticks(self._ticks, kernel).items():
            found[phase] = found.get(phase, 0.0) + seconds
        return found


def by_functions(calls: cProfile.Profile, phases: Mapping[str, frozenset[str]], rest: str) -> Seconds:
    """Each phase's time with all that its functions call, and what is left."""
    found = dict.fromkeys((*phases, rest), 0.0)
    total = 0.0
    calls.create_stats()
    for (file, _, function), (_, _, own, cumulative, _) in calls.stats.items():
        total += own
        name = f"{Path(file).name}:{function}"
        for phase, functions in phases.items():
            if name in functions:
                found[phase] += cumulative
    claimed = sum(found[phase] for phase in phases)
    found[rest] += max(0.0, total - claimed)
    return found


def by_ticks(ticks: Mapping[str, int], seconds: float) -> Seconds:
    """`seconds` of a call divided as its counters are; all `other` if they counted nothing."""
    total = sum(ticks.values())
    if not total:
        return {"other": seconds} if seconds else {}
    found: Seconds = {}
    for name, count in ticks.items():
        phase = OF_TICKS.get(name, "other")
        found[phase] = found.get(phase, 0.0) + seconds * count / total
    return found


def shares_of_step(phases: Mapping[str, float], outside: float) -> dict[str, float]:
    """Phases inside `execute` as shares of a whole step, of which the share `outside` is around it: bookkeeping too."""
    measured = sum(phases.values())
    shares = {phase: seconds / measured * (1 - outside) for phase, seconds in phases.items()}
    shares["bookkeeping"] = shares.get("bookkeeping", 0.0) + outside
    return shares
