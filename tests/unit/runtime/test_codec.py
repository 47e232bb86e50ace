"""What is sent is what arrives, for every core type on the wire."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.block_facts import SHORT_BYTES, BlockSource, Facts, ShortHash, Stock
from services.core.errors import BY_REASON, InternalError, InvalidRequest, error_from
from services.core.ids import RequestId, RequestKey
from services.core.ledger import Segment
from services.core.plan import TokenLogprobs
from services.core.request import FinishReason, Request, Role, Sampling, Stopping
from services.pb import kvstore_pb2, session_pb2
from services.runtime import codec

tokens = st.lists(st.integers(0, 2**20), max_size=20).map(tuple)
keys = st.builds(RequestKey, st.text("abc0", min_size=1).map(RequestId), st.integers(0, 2**20))
requests = st.builds(
    Request,
    key=keys,
    prompt=tokens.filter(bool),
    emitted=tokens,
    sampling=st.builds(
        Sampling,
        temperature=st.floats(0, 2),
        top_k=st.integers(0, 100),
        top_p=st.floats(0, 1),
        min_p=st.floats(0, 1),
        seed=st.integers(-(2**63), 2**63 - 1),
        repetition_penalty=st.floats(0.01, 100),
        presence_penalty=st.floats(-2, 2),
        frequency_penalty=st.floats(-2, 2),
        logit_bias=st.lists(st.tuples(st.integers(0, 2**31), st.floats(-100, 100)), max_size=4).map(tuple),
        logprobs=st.none() | st.integers(0, 20),
    ),
    stopping=st.builds(Stopping, st.integers(21, 9999), st.integers(0, 99), st.frozensets(st.integers(0, 2**20))),
    role=st.sampled_from(Role),
    salt=st.binary(max_size=8),
    priority=st.integers(-9, 9),
    client=st.text("abc", max_size=3),
    traffic_class=st.text("abc", max_size=3),
)
short_hashes = st.lists(st.binary(min_size=SHORT_BYTES, max_size=SHORT_BYTES).map(ShortHash), max_size=3).map(tuple)
named = st.text("abc", min_size=1)
facts = st.builds(
    Facts, st.builds(Stock, named, named, named, named, named), st.integers(0, 2**64 - 1), short_hashes, short_hashes
)


@given(facts)
def test_facts_survive_the_wire(facts: Facts) -> None:
    message = kvstore_pb2.BlockFacts.FromString(codec.facts_to_pb(facts, is_inventory=True).SerializeToString())
    assert message.is_inventory
    assert codec.facts_from_pb(message) == facts


@pytest.mark.parametrize(
    "broken",
    [
        kvstore_pb2.BlockFacts(incarnation="life"),
        kvstore_pb2.BlockFacts(address="s:1"),
        kvstore_pb2.BlockFacts(address="s:1", incarnation="life", added=[b"short"]),
        kvstore_pb2.BlockFacts(address="s:1", incarnation="life", removed=[bytes(SHORT_BYTES + 1)]),
    ],
)
def test_facts_that_cannot_be_meant_are_refused(broken: kvstore_pb2.BlockFacts) -> None:
    with pytest.raises(InvalidRequest):
        codec.facts_from_pb(broken)


@given(requests, st.lists(st.builds(BlockSource, named, st.integers(1, 99)), max_size=3).map(tuple))
def test_the_sources_of_a_prompt_survive_the_wire(request: Request, sources: tuple[BlockSource, ...]) -> None:
    start = codec.start_to_pb(request, now=0.0, traceparent="", sources=sources)
    assert codec.sources_from_pb(session_pb2.Start.FromString(start.SerializeToString())) == sources


@given(requests)
def test_a_request_survives_the_wire(request: Request) -> None:
    start = codec.start_to_pb(request, now=5.0, traceparent="t", kvstore="k:1")
    assert codec.request_from_pb(session_pb2.Start.FromString(start.SerializeToString()), now=9.0) == request
    assert (start.traceparent, start.kvstore) == ("t", "k:1")


@given(st.floats(0, 1e6), st.floats(0, 1e3), st.floats(0, 1e6))
def test_only_the_time_left_crosses_the_wire(now: float, left: float, theirs: float) -> None:
    request = Request(RequestKey(RequestId("r")), (1,), Sampling(), Stopping(1), deadline=now + left)
    arrived = codec.request_from_pb(codec.start_to_pb(request, now, ""), theirs)
    assert arrived.deadline == pytest.approx(theirs + left, abs=1e-6)


def test_no_deadline_stays_none() -> None:
    request = Request(RequestKey(RequestId("r")), (1,), Sampling(), Stopping(1))
    assert codec.request_from_pb(codec.start_to_pb(request, 1.0, ""), 2.0).deadline is None


def test_a_role_that_is_not_known_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        codec.request_from_pb(session_pb2.Start(request_id="r"), 0.0)


@pytest.mark.parametrize(
    "changes", [{"prompt": ()}, {"stopping": Stopping(1), "emitted": (5,)}, {"stopping": Stopping(0)}]
)
def test_what_no_service_could_work_on_is_refused(changes: dict[str, object]) -> None:
    request = replace(Request(RequestKey(RequestId("r")), (1,), Sampling(), Stopping(4)), **changes)
    with pytest.raises(InvalidRequest):
        codec.request_from_pb(codec.start_to_pb(request, 0.0, ""), 0.0)


@given(
    keys, st.sampled_from(FinishReason), st.lists(st.builds(Segment, st.text(max_size=5), st.floats(0, 9)), max_size=4)
)
def test_an_end_survives_the_wire(key: RequestKey, reason: FinishReason, segments: list[Segment]) -> None:
    event = codec.finished_event(key, reason, segments, cached_tokens=7)
    assert codec.key_from_pb(event) == key
    assert codec.finish_reason_from_pb(event.finished) is reason
    assert codec.segments_from_pb(event.segments) == segments


def test_a_start_that_says_nothing_of_penalties_has_none() -> None:
    start = session_pb2.Start(request_id="r", role=session_pb2.ROLE_WHOLE, prompt=[1])
    start.stopping.max_tokens = 1
    assert not codec.request_from_pb(start, 0.0).sampling.has_penalties


logprobs = st.builds(
    TokenLogprobs,
    st.floats(max_value=0, allow_nan=False),
    st.lists(st.tuples(st.integers(0, 2**31), st.floats(max_value=0, allow_nan=False)), max_size=3).map(tuple),
)


@given(keys, st.lists(st.tuples(st.integers(0, 2**20), logprobs), max_size=4))
def test_log_probabilities_survive_the_wire_beside_their_tokens(
    key: RequestKey, drawn: list[tuple[int, TokenLogprobs]]
) -> None:
    event = codec.tokens_event(key, 3, [token for token, _ in drawn], logprobs=[one for _, one in drawn])
    arrived = session_pb2.Event.FromString(event.SerializeToString()).tokens
    assert list(arrived.ids) == [token for token, _ in drawn]
    assert codec.logprobs_from_pb(arrived) == tuple(one for _, one in drawn)
    assert codec.logprobs_from_pb(codec.tokens_event(key, 0, [1, 2]).tokens) == ()


@pytest.mark.parametrize(
    "tokens",
    [
        session_pb2.Tokens(ids=[1, 2], logprobs=[session_pb2.TokenLogprobs()]),
        session_pb2.Tokens(ids=[1], logprobs=[session_pb2.TokenLogprobs(top_ids=[1])]),
    ],
)
def test_log_probabilities_that_do_not_fit_the_tokens_are_a_fault(tokens: session_pb2.Tokens) -> None:
    with pytest.raises(InternalError):
        codec.logprobs_from_pb(tokens)


@pytest.mark.parametrize("reason", sorted(BY_REASON))
def test_every_error_is_rebuilt_as_the_same_class(reason: str) -> None:
    error = error_from(reason, "why", field="f", retry_after=1.5)
    rebuilt = codec.error_from_pb(codec.failed_event(RequestKey(RequestId("r")), error).failed)
    assert type(rebuilt) is BY_REASON[reason]
    assert (rebuilt.message, rebuilt.field, rebuilt.retry_after) == ("why", "f", 1.5)


def test_an_error_this_version_does_not_know_is_internal() -> None:
    assert type(error_from("FromTheFuture", "x")) is InternalError
