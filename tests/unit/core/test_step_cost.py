import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.step_cost import Sample, StepCost

COSTS = st.builds(StepCost, st.floats(1e-4, 0.1), st.floats(0, 0.01), st.floats(0, 1e-5), st.floats(0, 1e-4))
SHAPES = [(tokens, cached) for tokens in (1, 8, 64, 256) for cached in (0, 300, 1500)]


def samples_of(cost: StepCost) -> list[Sample]:
    return [
        (tokens, tokens * (cached + tokens), cached + tokens, cost.of([(tokens, cached)])) for tokens, cached in SHAPES
    ]


def test_a_step_costs_its_fixed_part_once_and_each_chunk_by_tokens_and_context() -> None:
    cost = StepCost(fixed=1.0, per_token=0.5, per_token_context=0.25, per_context=0.125)
    assert cost.of([]) == 1.0
    assert cost.of([(2, 6), (1, 3)]) == 1.0 + 3 * 0.5 + (2 * 8 + 1 * 4) * 0.25 + (8 + 4) * 0.125


@given(COSTS, st.floats(0, 1), st.integers(0, 2000), st.floats(0, 1), st.integers(1, 3000))
def test_the_longest_chunk_fits_and_one_token_more_does_not(
    cost: StepCost, budget: float, cached: int, already: float, most: int
) -> None:
    longest = cost.longest_chunk(budget, cached, already, most)
    assert 1 <= longest <= most
    assert longest == 1 or already + cost.chunk(longest, cached) <= budget
    assert longest == most or already + cost.chunk(longest + 1, cached) > budget


@given(COSTS)
def test_a_fit_to_exact_samples_predicts_them(cost: StepCost) -> None:
    fitted = StepCost.fit(samples_of(cost))
    for tokens, cached in SHAPES:
        assert fitted.of([(tokens, cached)]) == pytest.approx(cost.of([(tokens, cached)]), rel=1e-6, abs=1e-9)


@given(
    st.lists(
        st.tuples(st.integers(1, 512), st.integers(0, 10**6), st.integers(1, 2000), st.floats(1e-4, 2)),
        min_size=1,
        max_size=12,
    )
)
def test_a_fit_to_anything_has_no_negative_coefficient(samples: list[Sample]) -> None:
    fitted = StepCost.fit(samples)
    assert min(fitted.fixed, fitted.per_token, fitted.per_token_context, fitted.per_context) >= 0


def test_samples_that_fall_with_length_fit_a_constant_and_not_a_falling_line() -> None:
    fitted = StepCost.fit([(1, 1, 1, 0.3), (2, 4, 2, 0.2), (3, 9, 3, 0.1)])
    assert 0.1 < fitted.fixed < 0.3
    assert fitted.per_token == fitted.per_token_context == fitted.per_context == 0.0


def test_one_sample_is_enough_for_a_fit_that_meets_it() -> None:
    assert StepCost.fit([(10, 100, 10, 0.5)]).of([(10, 0)]) == pytest.approx(0.5)


def test_a_fit_to_nothing_is_refused() -> None:
    with pytest.raises(ValueError):
        StepCost.fit([])
