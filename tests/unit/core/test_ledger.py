"""Segments are contiguous, disjoint, not negative, and sum to the elapsed time, however deep the calls."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.ledger import Ledger, Segment, merged

spans = st.floats(0, 10, allow_nan=False)


@given(st.lists(st.tuples(st.sampled_from("abc"), spans), max_size=20))
def test_closed_segments_sum_to_the_elapsed_time(pieces: list[tuple[str, float]]) -> None:
    now = 100.0
    ledger = Ledger(now)
    for name, seconds in pieces:
        now += seconds
        ledger.close(name, now)
    taken = ledger.take()
    assert sum(segment.seconds for segment in taken) == pytest.approx(now - 100.0)
    assert all(one.name != other.name for one, other in pairwise(taken))
    assert ledger.take() == ()


@given(spans, spans, spans, spans)
def test_a_call_is_replaced_by_the_callees_segments_and_the_hop(
    before: float, out: float, inside: float, back: float
) -> None:
    ledger = Ledger(0.0)
    ledger.close("before", before)
    ledger.absorb("hop", [Segment("inside", inside)], before + out + inside + back)
    taken = {segment.name: segment.seconds for segment in ledger.take()}
    assert taken == pytest.approx({"before": before, "hop": out + back, "inside": inside})


def test_a_callee_that_claims_more_than_the_wait_leaves_no_negative_hop() -> None:
    ledger = Ledger(0.0)
    ledger.absorb("hop", [Segment("inside", 1.0)], 0.9)
    assert [segment.seconds for segment in ledger.take()] == [0.0, 1.0]


def test_segments_already_taken_are_not_told_twice() -> None:
    ledger = Ledger(0.0)
    ledger.close("first", 1.0)
    ledger.take()
    ledger.close("second", 3.0)
    assert ledger.take() == (Segment("second", 2.0),)


def test_merging_keeps_the_order_of_first_appearance_and_the_sum() -> None:
    told = merged([Segment("a", 1.0), Segment("b", 2.0), Segment("a", 3.0)])
    assert told == (Segment("a", 4.0), Segment("b", 2.0))
