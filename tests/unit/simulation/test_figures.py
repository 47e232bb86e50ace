"""The figures made of outcomes, and what a comparison says."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.simulation.comparison import ratios
from services.simulation.gaps import Gaps
from services.simulation.outcome import Outcome, Run, figures, gap_percentile, percentile
from services.simulation.profile import Objective
from services.simulation.verdict import split_pays, worse


def test_goodput_counts_those_in_time_with_steady_gaps() -> None:
    outcomes = [
        Outcome(0.0, 100, 11, placed=0.0, first=1.0, ended=2.0, cached=50, gaps=10, long_gaps=(1,)),
        Outcome(1.0, 100, 11, placed=1.0, first=2.0, ended=4.0, gaps=10, long_gaps=(2,)),
        Outcome(2.0, 100, 1, placed=2.0, first=7.0, ended=7.0, is_split=True, long_gaps=(0,)),
        Outcome(4.0, 100, 1, placed=4.0, first=9.0, ended=9.0, long_gaps=(0,)),
    ]
    found = figures(Run("ours", outcomes, {0: 4}, (0.1,), {}), Objective(ttft=3.0, itl=0.1))
    assert found["goodput"] == pytest.approx(1 / 4)
    assert found["mean_ttft_seconds"] == pytest.approx((1 + 1 + 5 + 5) / 4)
    assert found["mean_itl_seconds"] == pytest.approx((0.1 + 0.2) / 2)
    assert found["mean_answer_seconds"] == pytest.approx((2 + 3 + 5 + 5) / 4)
    assert found["cache_hit_rate"] == pytest.approx(50 / 400)
    assert (found["requests"], found["split_share"]) == (4, pytest.approx(1 / 4))


@given(st.floats(0.01, 1.0), st.floats(0.0, 0.05), st.integers(1, 200), st.floats(0.01, 3.0))
def test_long_steps_of_a_run_are_counted_as_one_by_one(first: float, growth: float, steps: int, limit: float) -> None:
    lengths = [first + growth * step for step in range(steps)]
    if any(math.isclose(length, limit, rel_tol=1e-9) for length in lengths):
        return
    gaps = Gaps((limit,))
    gaps.note(first, growth, steps, rows=2)
    assert gaps.counts == (steps, (sum(length > limit for length in lengths),))
    assert sum(gaps.bins.values()) == 2 * steps
    assert gap_percentile(gaps.bins, 50) == pytest.approx(first + growth * (steps - 1) / 2, rel=0.05)


def test_percentiles_are_of_the_nearest_rank() -> None:
    assert percentile([], 50) == 0.0
    assert [percentile(list(range(100)), share) for share in (0, 50, 99, 100)] == [0, 50, 99, 99]


def row(ttft: float, goodput: float) -> dict[str, object]:
    return {"mean_ttft_seconds": ttft, "goodput": goodput, "goodput_by_itl_limit": {"0.1": goodput}}


def test_ratios_stand_beside_the_published_ones() -> None:
    found = ratios({"ours": row(2.0, 1.0), "random": row(8.0, 1.0), "unsplit_chunked": row(3.0, 1.0)}, "ours")
    assert found["random"] == {"mean_ttft_ratio": 4.0, "published": pytest.approx(6.4, abs=0.01)}
    assert found["unsplit_chunked"] == {"mean_ttft_ratio": 1.5, "published": None}


def test_where_ours_is_worse_and_where_the_split_does_not_pay_is_said() -> None:
    loads = [
        {
            "load": load,
            "policies": {"ours": row(2.0, 1.0), "random": row(ttft, 0.5)},
            "best_unsplit": {"goodput_by_itl_limit": {"0.1": goodput}, "mean_ttft_seconds": 2.01},
        }
        for load, ttft, goodput in ((0.5, 3.0, 0.9), (1.0, 1.5, 1.2))
    ]
    assert worse(loads) == [
        {"load": 1.0, "policy": "random", "figure": "mean_ttft_seconds", "ratio": pytest.approx(2 / 1.5)}
    ]
    assert split_pays(loads) == {
        "goodput at 0.1 s between tokens": {"pays_at": [0.5], "does_not_pay_at": [1.0]},
        "mean TTFT": {"pays_at": [0.5, 1.0], "does_not_pay_at": []},
    }
    assert split_pays([{"load": 1.0, "policies": {}}]) == {}
