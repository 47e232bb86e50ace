"""A step that does not end is noticed in time, and no other is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.errors import EngineFault
from services.core.plan import StepPlan
from services.runtime.watchdog import LOOKS, TIMES, Watchdog

PATIENCE = 10.0


def looks_until_given_up(predicted: float, most: int = 10_000) -> int:
    dog, plan = Watchdog(PATIENCE, lambda _: predicted), StepPlan(())
    for count in range(most):
        try:
            dog.look(plan)
        except EngineFault:
            return count
    raise AssertionError("never given up")


@given(st.floats(0, 30))
def test_a_step_has_its_patience_or_ten_times_its_prediction(predicted: float) -> None:
    seconds = looks_until_given_up(predicted) * PATIENCE / LOOKS
    due = max(PATIENCE, TIMES * predicted)
    assert due <= seconds + 1e-6 and seconds <= due + PATIENCE / LOOKS + 1e-6


@given(st.lists(st.integers(0, LOOKS - 1), max_size=30))
def test_steps_that_end_in_time_are_left_alone_however_many_there_are(lengths: list[int]) -> None:
    dog = Watchdog(PATIENCE, lambda _: 0.0)
    for looks in lengths:
        plan = StepPlan(())
        for _ in range(looks):
            dog.look(plan)


def test_idle_time_counts_for_nobody() -> None:
    dog, plan = Watchdog(PATIENCE, lambda _: 0.0), StepPlan(())
    for _ in range(LOOKS):
        dog.look(plan)
    dog.look(None)
    for _ in range(LOOKS):
        dog.look(plan)
    with pytest.raises(EngineFault):
        dog.look(plan)
