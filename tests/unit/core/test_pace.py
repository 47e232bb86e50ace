"""A cost measured at a bad moment is put right by the steps that follow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.ids import RequestId, RequestKey
from services.core.pace import LEAST, MOST, Pace
from services.core.plan import Chunk, StepPlan
from services.core.step_cost import StepCost

COST = StepCost(fixed=0.06, per_token=0.004, per_token_context=1e-6, per_context=1e-5)


def plan(tokens: int, start: int = 0) -> StepPlan:
    return StepPlan((Chunk(RequestKey(RequestId("a")), (0,) * tokens, start, (), None),))


@given(st.floats(LEAST, MOST))
def test_after_some_steps_the_cost_predicts_what_steps_take(factor: float) -> None:
    pace = Pace(COST.scaled(1 / factor))
    for step in range(40):
        pace.note(plan(1 + step % 20, 10 * step), COST.of([(1 + step % 20, 10 * step)]))
    assert pace.cost.of([(16, 100)]) == pytest.approx(COST.of([(16, 100)]), rel=0.01)


def test_one_hiccup_changes_little_and_a_step_without_a_time_nothing() -> None:
    pace = Pace(COST)
    pace.note(plan(8), 1000.0)
    assert pace.cost.fixed <= COST.fixed * (1 + 0.2 * MOST)
    before = pace.cost
    pace.note(plan(8), 0.0)
    assert pace.cost == before
