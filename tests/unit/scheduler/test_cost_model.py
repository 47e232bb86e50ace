"""Predicted seconds, against hand numbers and against cutting a prompt chunk by chunk as a worker does."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from services.core.step_cost import StepCost
from services.scheduler import cost_model
from services.scheduler.cost_model import FAR_BYTES_PER_SECOND, MOVE_SECONDS, Costs, Prefill

BLOCK = 16


def costs(cost: StepCost, step: float) -> Costs:
    columns = (cost.fixed, cost.per_token, cost.per_token_context, cost.per_context, step)
    return Costs(*(np.array([number]) for number in columns))


def predicted(cost: StepCost, step: float, tokens: int, cached: int = 0, beside: float = 0.0) -> tuple[float, float]:
    found = cost_model.prefill(costs(cost, step), np.array([float(tokens)]), np.array([float(cached)]), BLOCK, beside)
    return float(found.seconds[0]), float(found.steps[0])


def chunk_by_chunk(cost: StepCost, step: float, tokens: int, cached: int, beside: float) -> tuple[float, int]:
    """As the worker's own composition cuts it, with nothing else but `beside` seconds of other rows in each step."""
    seconds, steps, left = 0.0, 0, tokens
    while left:
        start = cached + tokens - left
        length = cost.longest_chunk(step, start, cost.fixed + beside, left)
        length = max(length, min(left, BLOCK))
        seconds += cost.fixed + beside + cost.chunk(length, start)
        left, steps = left - length, steps + 1
    return seconds, steps


def test_a_prompt_that_fits_a_step_is_that_step() -> None:
    cost = StepCost(0.004, 0.0005, 1e-7, 1e-6)
    seconds, steps = predicted(cost, 1.0, 100, 32)
    assert (seconds, steps) == (pytest.approx(cost.of([(100, 32)])), 1)


def test_a_prompt_of_three_steps_pays_the_fixed_part_and_what_is_beside_it_three_times() -> None:
    seconds, steps = predicted(StepCost(0.02, 0.001, 0.0), 0.1, 210, beside=0.01)
    assert (seconds, steps) == (pytest.approx(3 * 0.03 + 0.21), 3)


def test_where_the_other_rows_fill_the_step_a_block_is_computed_in_each() -> None:
    _, steps = predicted(StepCost(0.02, 0.001, 0.0), 0.1, 160, beside=0.5)
    assert steps == 10


made_costs = st.builds(StepCost, st.floats(0, 0.02), st.floats(1e-5, 2e-3), st.floats(0, 1e-6), st.floats(0, 3e-6))


@given(
    cost=made_costs,
    step=st.floats(0.02, 0.3),
    lengths=st.tuples(st.integers(1, 6000), st.integers(0, 6000)),
    beside=st.floats(0, 0.01),
)
def test_it_is_near_what_the_worker_will_do(
    cost: StepCost, step: float, lengths: tuple[int, int], beside: float
) -> None:
    """As long as a step has room for more than what it spends in any case."""
    tokens, cached = lengths
    last_step = cost.fixed + beside + cost.per_context * (cached + tokens)
    assume(last_step < step / 2)
    exact, cuts = chunk_by_chunk(cost, step, tokens, cached, beside)
    seconds, steps = predicted(cost, step, tokens, cached, beside)
    assert seconds == pytest.approx(exact, rel=0.2, abs=1.5 * last_step)
    assert steps == pytest.approx(cuts, rel=0.35, abs=1.01)


def test_a_move_of_nothing_is_free_and_any_other_has_its_messages() -> None:
    assert float(cost_model.move(0.0, FAR_BYTES_PER_SECOND)) == 0.0
    assert float(cost_model.move(7e8, FAR_BYTES_PER_SECOND)) == pytest.approx(MOVE_SECONDS + 1.0)


def test_a_hand_over_leaves_the_last_chunk_or_what_computing_did_not_hide() -> None:
    prefilled = Prefill(np.array([2.0, 0.25]), np.array([4.0, 4.0]))
    left = cost_model.handover(prefilled, np.array([7e8, 7e8]), np.array([7e8, 7e8]))
    assert left == pytest.approx([MOVE_SECONDS + 0.25, MOVE_SECONDS + 0.75])


def test_a_backlog_is_its_work_and_the_fixed_part_of_its_steps() -> None:
    cost = StepCost(0.02, 0.001, 0.0)
    assert cost_model.backlog(cost, 0.1, 0, 3) == 0.0
    assert cost_model.backlog(cost, 0.1, 160, 1) == pytest.approx(0.16 + 2 * 0.02)
