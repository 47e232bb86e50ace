"""What a client sees of streams into measures."""

import pytest

from peers.streams import Stream, gap_percentiles, served_measures

ONE = Stream(asked=10.0, arrivals=(10.5, 10.75, 11.5), tokens=4)
OTHER = Stream(asked=10.5, arrivals=(12.0, 12.5), tokens=2)


def test_the_rate_counts_tokens_as_the_server_does_and_not_pieces_of_text() -> None:
    found = served_measures("W1", [ONE, OTHER])
    assert found["tokens_per_second"] == pytest.approx(6 / 2.5)
    assert found["ttft"] == pytest.approx((0.5 + 1.5) / 2)


def test_one_stream_is_measured_after_its_first_text() -> None:
    assert served_measures("W2", [ONE])["tokens_per_second"] == pytest.approx(3 / 1.0)


def test_gaps_are_those_of_each_stream_by_itself() -> None:
    found = served_measures("W1", [ONE, OTHER])
    assert found["itl_median"] == pytest.approx(0.5)
    assert 0.74 < found["itl_p99"] <= 0.75


def test_a_gap_that_a_moment_fell_into_counts_with_all_of_it() -> None:
    assert ONE.gaps_between(10.6, 10.7) == pytest.approx([0.25])
    assert ONE.gaps_between(10.7, 11.0) == pytest.approx([0.25, 0.75])
    assert ONE.gaps_between(11.5, 12.0) == []


def test_a_stream_without_text_is_refused() -> None:
    with pytest.raises(ValueError):
        Stream(1.0, (), 3)


def test_percentiles_say_of_how_many_gaps_they_are() -> None:
    found = gap_percentiles([0.1] * 99 + [1.0])
    assert found["p50"] == pytest.approx(0.1)
    assert found["most"] == 1.0
    assert found["gaps"] == 100
