"""How a prompt that is alone is cut into chunks of equal time."""

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from services.core.batch_limits import BatchLimits
from services.core.step_cost import StepCost
from tests.support.batches import LIMITS, Worker, request

EVEN = replace(LIMITS, step_seconds=40, even_chunks=True, max_context=400, num_blocks=200)


def chunks(limits: BatchLimits, tokens: int) -> list[int]:
    """Lengths of a prompt's chunks, in order."""
    worker = Worker(limits)
    worker.add(request("a", range(tokens)))
    found: list[int] = []
    while sum(found) < tokens:
        found.append(worker.lengths()["a"])
    return found


def test_a_prompt_that_is_alone_is_cut_evenly() -> None:
    assert chunks(replace(EVEN, cost=StepCost(0.0, 1.0, 0.0)), 41) == [20, 21]
    assert chunks(replace(EVEN, cost=StepCost(0.0, 1.0, 0.0), even_chunks=False), 41) == [40, 1]


def test_what_fits_into_a_step_is_not_cut() -> None:
    assert chunks(replace(EVEN, cost=StepCost(0.0, 1.0, 0.0)), 40) == [40]


@example(tokens=354, growth=0.019779389790072904, fixed=0.0)
@given(tokens=st.integers(41, 390), growth=st.floats(0.0, 0.0198), fixed=st.floats(0.0, 5.0))
def test_the_last_chunk_takes_about_as_long_as_the_one_before(tokens: int, growth: float, fixed: float) -> None:
    """Unless that one is as short as a chunk may be: a block, in no more than the step's time at this growth."""
    cost = StepCost(fixed, 1.0, growth)
    *before, last = chunks(replace(EVEN, cost=cost), tokens)
    done = tokens - last
    assert all(cost.of([(length, sum(before[:at]))]) <= EVEN.step_seconds for at, length in enumerate(before))
    is_shortest = before[-1] == EVEN.block_size
    assert is_shortest or cost.chunk(last, done) > 0.9 * cost.chunk(before[-1], done - before[-1])
