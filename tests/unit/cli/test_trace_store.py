"""Traces in bounded memory."""

from hypothesis import given
from hypothesis import strategies as st

from services.cli.trace_store import REQUEST_ID, ROOT, KeptSpan, Limits, TraceStore

LIMITS = Limits(traces=4, spans_per_trace=5, bytes_per_trace=500, bytes=1500)


def span(trace: str, number: str, parent: str = "", name: str = "x", request: str = "", size: int = 10) -> KeptSpan:
    attributes = {REQUEST_ID: request} if request else {}
    return KeptSpan(trace, number, parent, name, "decode", 0, 1, size, attributes)


@given(
    st.lists(
        st.builds(
            span,
            st.sampled_from("abcdefg"),
            st.sampled_from("123456789"),
            st.sampled_from(["", "1", "2", "elsewhere"]),
            st.sampled_from([ROOT, "kv.put"]),
            st.sampled_from(["", "r1", "r2", "r3"]),
            st.integers(1, 600),
        ),
        max_size=60,
    )
)
def test_whatever_arrives_the_limits_hold_and_the_books_agree(spans: list[KeptSpan]) -> None:
    store = TraceStore(LIMITS)
    for now, one in enumerate(spans):
        refused = store.add([one], float(now))
        store.check_invariants()
        assert refused in (0, 1)
        found = store.find(one.trace_id)
        assert refused or found == one.trace_id


def test_a_trace_is_found_by_its_id_by_its_request_and_as_the_latest_finished() -> None:
    store = TraceStore(Limits())
    store.add([span("a", "1", name=ROOT, request="ra"), span("b", "1", name=ROOT, request="rb")], 0.0)
    store.add([span("c", "1", name="decode.run")], 1.0)
    assert (store.find("a"), store.find("ra"), store.find("rb"), store.find("")) == ("a", "a", "b", "b")
    assert store.find("unknown") is None
    assert TraceStore(Limits()).find("") is None


def test_a_trace_is_whole_when_its_root_has_ended_and_no_parent_is_missing() -> None:
    store = TraceStore(Limits())
    store.add([span("a", "3", parent="2")], 0.0)
    assert not store.is_whole("a")
    store.add([span("a", "1", name=ROOT, parent="the caller's own span")], 0.0)
    assert not store.is_whole("a"), "span 2 is missing"
    store.add([span("a", "2", parent="1")], 0.0)
    assert store.is_whole("a")


def test_a_trace_that_had_to_be_cut_is_never_whole() -> None:
    store = TraceStore(Limits(spans_per_trace=2))
    store.add([span("a", "1", name=ROOT), span("a", "2", parent="1")], 0.0)
    assert store.is_whole("a")
    assert store.add([span("a", "3", parent="2")], 0.0) == 1
    assert not store.is_whole("a")


def test_the_trace_that_has_been_silent_longest_goes_first() -> None:
    store = TraceStore(Limits(traces=2))
    store.add([span("a", "1", name=ROOT, request="ra"), span("b", "1"), span("a", "2")], 0.0)
    store.add([span("c", "1")], 1.0)
    assert (store.find("a"), store.find("b"), store.find("ra")) == ("a", None, "a")


def test_a_span_that_is_sent_twice_counts_once() -> None:
    store = TraceStore(Limits())
    store.add([span("a", "1"), span("a", "1")], 0.0)
    assert len(store.spans("a")) == 1
    store.check_invariants()
