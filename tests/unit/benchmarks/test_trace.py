"""Token times into measures."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peers.trace import Trace, measures, medians, percentile

TWO = Trace(prompt_tokens=8, times=((1.0, 1.5, 2.5), (2.0, 2.25, 4.0)))


def test_output_rate_counts_every_token_over_the_whole_run() -> None:
    assert TWO.output_tokens_per_second == pytest.approx(6 / 4.0)


def test_ttft_is_averaged_over_requests() -> None:
    assert TWO.mean_ttft == pytest.approx(1.5)


def test_gaps_are_within_a_request_and_never_across_two() -> None:
    assert sorted(TWO.gaps) == pytest.approx([0.25, 0.5, 1.0, 1.75])


def test_one_stream_decodes_after_its_first_token_and_prefills_before_it() -> None:
    one = Trace(prompt_tokens=10, times=((2.0, 2.5, 3.0, 3.5),))
    assert one.decode_tokens_per_second == pytest.approx(3 / 1.5)
    assert one.prefill_tokens_per_second == pytest.approx(10 / 2.0)


def test_each_workload_has_the_measures_that_are_compared() -> None:
    one = Trace(prompt_tokens=10, times=((2.0, 2.5, 3.0),))
    assert measures("W1", TWO).keys() == {"tokens_per_second", "ttft", "itl_median", "itl_p99"}
    assert measures("W2", one)["tokens_per_second"] == pytest.approx(2.0)
    assert measures("W3", one) == pytest.approx({"tokens_per_second": 5.0, "ttft": 2.0})


@pytest.mark.parametrize("times", [(), ((),), ((1.0, 0.5),), ((0.0, 1.0),)])
def test_a_run_that_cannot_have_been_is_refused(times: tuple[tuple[float, ...], ...]) -> None:
    with pytest.raises(ValueError):
        Trace(prompt_tokens=1, times=times)


def test_a_trace_survives_the_pipe() -> None:
    trace = Trace(3, ((0.125, 0.5),), ((7, 9),))
    assert Trace.from_json(json.loads(json.dumps(trace.as_json()))) == trace


def test_medians_are_of_each_measure_by_itself() -> None:
    runs = [{"a": 1.0, "b": 9.0}, {"a": 3.0, "b": 7.0}, {"a": 2.0, "b": 8.0}]
    assert medians(runs) == {"a": 2.0, "b": 8.0}


def test_percentiles_lie_between_neighbouring_ranks() -> None:
    assert percentile([4.0, 1.0, 2.0, 3.0], 50) == pytest.approx(2.5)
    assert percentile([1.0, 2.0], 99) == pytest.approx(1.99)
    assert percentile([], 99) == 0.0


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 100))
def test_a_percentile_is_within_its_values_and_grows_with_the_percent(values: list[float], percent: float) -> None:
    found = percentile(values, percent)
    assert min(values) <= found <= max(values)
    assert found <= percentile(values, min(100, percent + 1)) * (1 + 1e-12)
