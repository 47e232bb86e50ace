"""What a step's time goes to."""

import time
from collections.abc import Callable

import pytest

from peers.step_clock import Step, StepClock, Turn, fullest_decodes
from peers.step_profile import COMPILED, StepProfile, by_ticks, shares_of_step
from services.core.ids import BlockId, RequestId, RequestKey
from services.core.plan import Chunk, StepPlan, StepResult

KERNEL, DRAWING = 0.004, 0.002
PHASES = {"kernel": frozenset({f"{__file__.rpartition('/')[2]}:multiply"}), "sampling": frozenset({"~:none"})}


def spin(seconds: float) -> None:
    """A phase must take time to be found, and a clock may be late but not early."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def multiply() -> None:
    spin(KERNEL)


def draw() -> None:
    spin(DRAWING)


class Runner:
    """Computes nothing, in phases of known lengths, and counts as the compiled engine does."""

    def __init__(self, *phases: Callable[[], None]) -> None:
        self._phases = phases
        self.counted = {"linear": 100, "wait": 50}

    def execute(self, plan: StepPlan) -> StepResult:
        for phase in self._phases:
            phase()
        self.counted = {"linear": self.counted["linear"] + 30, "wait": self.counted["wait"] + 10}
        return StepResult(drawn={})


def plan(*sizes: int) -> StepPlan:
    keys = [RequestKey(RequestId(f"r{index}")) for index in range(len(sizes))]
    return StepPlan(
        tuple(Chunk(key, (0,) * size, 0, (BlockId(0),), None) for key, size in zip(keys, sizes, strict=True))
    )


def test_steps_are_noted_with_their_rows_and_kind() -> None:
    clock = StepClock(Runner(multiply))
    clock.execute(plan(1, 1, 1))
    clock.execute(plan(1, 5))
    assert [(step.rows, step.is_decode) for step in clock.steps] == [(3, True), (6, False)]
    assert all(step.ended - step.began >= KERNEL for step in clock.steps)


def test_a_phase_has_the_time_of_all_that_it_calls_and_the_rest_has_the_rest() -> None:
    runner = Runner(multiply, draw)
    clock = StepClock(runner, profile=StepProfile(PHASES, "bookkeeping", lambda: runner.counted))
    for _ in range(3):
        clock.execute(plan(1))
    assert clock.profile is not None
    found = clock.profile.seconds()
    assert found["linear"] == pytest.approx(3 * found["waiting"])
    assert found["linear"] + found["waiting"] >= 3 * KERNEL
    assert found["bookkeeping"] >= 3 * DRAWING
    assert found["sampling"] == 0.0 and "kernel" not in found


def test_only_full_decode_steps_are_profiled() -> None:
    runner = Runner(multiply)
    clock = StepClock(runner, profile=StepProfile(PHASES, "bookkeeping", lambda: runner.counted), profiled_rows=2)
    clock.execute(plan(1))
    clock.execute(plan(1, 7))
    assert clock.profile is not None
    assert sum(clock.profile.seconds().values()) == 0.0
    clock.execute(plan(1, 1))
    assert sum(clock.profile.seconds().values()) >= KERNEL


def test_a_step_lasts_until_the_next_like_it_and_what_is_between_is_outside() -> None:
    steps = [
        Step(0.0, 1.0, rows=9, is_decode=False),
        Step(1.0, 1.75, rows=2, is_decode=True),
        Step(2.0, 2.5, rows=2, is_decode=True),
        Step(4.0, 4.5, rows=1, is_decode=True),
    ]
    assert fullest_decodes(steps) == [Turn(rows=2, seconds=1.0, outside=0.25)]
    with pytest.raises(ValueError, match="full decode steps"):
        fullest_decodes(steps[:2])


def test_counters_divide_a_call_and_an_unknown_one_is_other_work() -> None:
    found = by_ticks({"linear": 5, "head": 1, "attention": 2, "norm": 1, "new": 1}, seconds=1.0)
    assert found == pytest.approx({"linear": 0.6, "attention": 0.2, "other": 0.2})
    assert by_ticks({}, seconds=1.0) == {"other": 1.0}


def test_shares_make_a_whole_step_with_everything_outside_it_as_bookkeeping() -> None:
    shares = shares_of_step({"linear": 6.0, "bookkeeping": 1.0, "other": 1.0}, outside=0.2)
    assert shares == pytest.approx({"linear": 0.6, "bookkeeping": 0.1 + 0.2, "other": 0.1})
    assert sum(shares.values()) == pytest.approx(1.0)


def test_the_compiled_engines_phases_do_not_overlap() -> None:
    claimed = [function for functions in COMPILED.values() for function in functions]
    assert len(claimed) == len(set(claimed))
