"""Fetching or computing the beginning of a prompt: the cheaper, never more than is known, never all of it."""

from hypothesis import given
from hypothesis import strategies as st

from services.core.prefix_fetch import MOST, NOTHING_KNOWN, FetchCost, FetchPace, KnownPrefix, blocks_worth_fetching
from services.core.step_cost import StepCost

SECONDS = st.floats(0, 1)
COSTS = st.builds(FetchCost, SECONDS, SECONDS)
STEPS = st.builds(StepCost, SECONDS, SECONDS, SECONDS, SECONDS)
COUNTS = st.integers(0, 100)
SIZE = 16


@given(COUNTS, COUNTS, COUNTS, COSTS, STEPS)
def test_all_that_is_known_is_fetched_or_nothing(
    known: int, most: int, hits: int, cost: FetchCost, step: StepCost
) -> None:
    blocks = blocks_worth_fetching(KnownPrefix(known, cost), most, hits, SIZE, step)
    assert blocks in (0, min(known, most) - hits) and blocks >= 0
    saved = step.chunk((min(known, most) - hits) * SIZE, hits * SIZE)
    assert blocks == 0 or cost.of(blocks) < saved


@given(COUNTS, COUNTS, COSTS, STEPS, st.floats(1, 10))
def test_what_is_worth_fetching_stays_so_where_computing_takes_longer(
    known: int, hits: int, cost: FetchCost, step: StepCost, factor: float
) -> None:
    prefix = KnownPrefix(known, cost)
    blocks = blocks_worth_fetching(prefix, 100, hits, SIZE, step)
    assert blocks_worth_fetching(prefix, 100, hits, SIZE, step.scaled(factor)) >= blocks


def test_nothing_is_known_of_a_prompt_that_nobody_speaks_of() -> None:
    assert blocks_worth_fetching(NOTHING_KNOWN, 10, 0, SIZE, StepCost(1.0, 1.0, 0.0)) == 0


@given(st.lists(st.tuples(st.integers(0, 100), st.floats(0, 1000)), max_size=30))
def test_a_cost_stays_within_bounds_whatever_fetches_take(noted: list[tuple[int, float]]) -> None:
    pace, guess = FetchPace(FetchCost(0.01, 0.001)), FetchCost(0.01, 0.001)
    for blocks, seconds in noted:
        pace.note(blocks, seconds, 0.0)
    assert 0 < pace.cost(0.0).of(10) <= guess.of(10) * MOST * 1.0001


def test_a_cost_follows_what_fetches_take_and_a_bad_time_is_forgotten() -> None:
    guess = FetchCost(0.01, 0.001)
    pace = FetchPace(guess)
    for _ in range(30):
        pace.note(10, guess.of(10) / 4, 0.0)
    assert abs(pace.cost(0.0).of(10) - guess.of(10) / 4) < 1e-5
    for _ in range(30):
        pace.note(0, 0.5, 100.0)
    assert pace.cost(100.0).of(10) > guess.of(10) * 19
    assert pace.cost(1000.0).of(10) < guess.of(10) * 1.01
