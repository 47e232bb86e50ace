"""An answer put together from events, across attempts, with a ledger that sums to the whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.errors import DiptychError, InternalError, Overloaded
from services.core.ids import RequestId, RequestKey
from services.core.ledger import Segment
from services.core.plan import TokenLogprobs
from services.core.request import FinishReason, Request, Sampling, Stopping
from services.gateway.answer import Answer, Usage, total_usage
from services.gateway.detokenizer import Detokenizer
from services.gateway.grpc_codec import decision_to_pb
from services.gateway.transcript import Transcript
from services.pb import session_pb2
from services.runtime.codec import failed_event, finished_event, tokens_event
from tests.support.byte_model import END, byte_model

KEY = RequestKey(RequestId("r"))


def answer_of(
    max_tokens: int = 20, stops: tuple[str, ...] = (), logprobs: int | None = None, *, started: bool = True
) -> Answer:
    """Received at 10, started at 11."""
    sampling = Sampling(seed=4, logprobs=logprobs)
    request = Request(KEY, (1, 2, 3), sampling, Stopping(max_tokens, stop_ids=frozenset({END})))
    transcript = Transcript(Detokenizer(byte_model().token_bytes), request.stopping.stop_ids, stops)
    answer = Answer(request, transcript, received_at=10.0)
    if started:
        answer.started(11.0)
    return answer


def test_deltas_are_what_came_since_the_last() -> None:
    answer = answer_of()
    answer.take(tokens_event(KEY, 0, b"He"), 12.0)
    answer.take(tokens_event(KEY, 2, b"l"), 12.5)
    delta = answer.take_delta()
    assert (delta.text, delta.token_ids) == ("Hel", tuple(b"Hel"))
    answer.take(tokens_event(KEY, 3, [ord("o"), END]), 13.0)
    answer.take(finished_event(KEY, FinishReason.STOP, cached_tokens=2), 14.0)
    delta = answer.take_delta()
    assert (delta.text, delta.token_ids) == ("o", (ord("o"), END))
    assert (answer.reason, answer.usage, answer.seed) == (FinishReason.STOP, Usage(3, 5, 2), 4)


def test_a_token_that_comes_twice_counts_once() -> None:
    answer = answer_of()
    answer.take(tokens_event(KEY, 0, b"abc"), 12.0)
    answer.take(tokens_event(KEY, 1, b"bcd"), 12.0)
    assert answer.take_delta().text == "abcd"


@pytest.mark.parametrize("event", [tokens_event(KEY, 1, b"a"), tokens_event(KEY, 0, bytes(21))])
def test_missing_tokens_and_too_many_are_faults(event: session_pb2.Event) -> None:
    with pytest.raises(InternalError):
        answer_of(max_tokens=20).take(event, 12.0)


@pytest.mark.parametrize("reason", [session_pb2.Finished.REASON_UNSPECIFIED, session_pb2.Finished.HANDED_OVER])
def test_an_end_without_a_reason_is_a_fault(reason: session_pb2.Finished.Reason) -> None:
    event = session_pb2.Event(request_id="r", finished=session_pb2.Finished(reason=reason))
    with pytest.raises(InternalError):
        answer_of().take(event, 12.0)


def test_a_failure_is_raised_as_what_it_was() -> None:
    with pytest.raises(Overloaded) as caught:
        answer_of().take(failed_event(KEY, Overloaded("full", retry_after=2.0)), 12.0)
    assert (caught.value.message, caught.value.retry_after) == ("full", 2.0)


def test_log_probabilities_come_with_their_tokens_and_with_the_text_they_made() -> None:
    answer = answer_of(stops=("lo",), logprobs=0)
    likely = [TokenLogprobs(-float(at)) for at in range(4)]
    answer.take(tokens_event(KEY, 0, b"Hel", logprobs=likely[:3]), 12.0)
    delta = answer.take_delta()
    assert (delta.text, delta.token_ids, delta.logprobs) == ("He", tuple(b"Hel"), tuple(likely[:3]))
    assert [one.token for one in delta.shown] == [*b"He"]
    answer.take(tokens_event(KEY, 2, b"ll", logprobs=likely[2:]), 12.5)
    answer.take(finished_event(KEY, FinishReason.LENGTH), 13.0)
    delta = answer.take_delta()
    assert (delta.text, delta.token_ids, delta.logprobs) == ("ll", tuple(b"l"), tuple(likely[3:]))
    assert [(one.token, one.offset) for one in delta.shown] == [(ord("l"), 2), (ord("l"), 3)]
    assert delta.reason is FinishReason.LENGTH


def test_log_probabilities_that_did_not_come_are_a_fault_and_those_not_asked_for_are_dropped() -> None:
    with pytest.raises(InternalError):
        answer_of(logprobs=3).take(tokens_event(KEY, 0, b"a"), 12.0)
    answer = answer_of()
    answer.take(tokens_event(KEY, 0, b"a", logprobs=[TokenLogprobs(-1.0)]), 12.0)
    delta = answer.take_delta()
    assert (delta.text, delta.logprobs, delta.shown) == ("a", (), ())


def test_an_answer_that_waits_for_anothers_prompt_says_so_in_its_ledger() -> None:
    answer = answer_of(started=False)
    answer.held(11.0)
    answer.started(13.0)
    answer.take(finished_event(KEY, FinishReason.LENGTH, [Segment("decode.run", 1.0)]), 14.0)
    closing = answer.closed(14.0)
    assert [(segment.name, segment.seconds) for segment in closing.segments][:2] == [
        ("gateway.tokenize", 1.0),
        ("gateway.shared_prompt", 2.0),
    ]
    assert (closing.total_seconds, closing.remainder_seconds) == (4.0, 0.0)


def test_a_prompt_counts_once_however_many_answers() -> None:
    answers = [answer_of() for _ in range(3)]
    for count, answer in enumerate(answers, 1):
        answer.take(tokens_event(KEY, 0, b"x" * count), 12.0)
        answer.take(finished_event(KEY, FinishReason.LENGTH, cached_tokens=2 if count == 1 else 3), 13.0)
    assert total_usage(answers) == Usage(3, 6, 2)
    assert total_usage([]) == Usage(0, 0, 0)


def test_the_schedulers_segments_and_the_hop_fill_the_wait() -> None:
    answer = answer_of()
    answer.take(tokens_event(KEY, 0, b"a", [Segment("scheduler.queue", 0.5), Segment("prefill.compute", 1.0)]), 13.0)
    answer.take(finished_event(KEY, FinishReason.LENGTH, [Segment("decode.run", 2.0)]), 15.0)
    closing = answer.closed(15.25)
    assert [(segment.name, segment.seconds) for segment in closing.segments] == [
        ("gateway.tokenize", 1.0),
        ("hop.gateway_scheduler", 0.5),
        ("scheduler.queue", 0.5),
        ("prefill.compute", 1.0),
        ("decode.run", 2.0),
        ("gateway.stream", 0.25),
    ]
    assert (closing.total_seconds, closing.remainder_seconds) == (5.25, 0.0)


def test_a_stop_string_completes_the_answer_whatever_reason_follows() -> None:
    answer = answer_of(stops=("lo",))
    answer.take(tokens_event(KEY, 0, b"Hello!"), 12.0)
    assert answer.stopped_at == 4
    assert answer.take_delta().text == "Hel"
    answer.take(tokens_event(KEY, 6, b"??"), 12.5)
    answer.take(finished_event(KEY, FinishReason.LENGTH), 13.0)
    assert answer.take_delta().token_ids == ()
    assert (answer.reason, answer.usage.completion_tokens) == (FinishReason.STOP, 5)


def test_text_held_back_for_a_stop_string_is_in_the_last_delta() -> None:
    answer = answer_of(stops=("lo!",))
    answer.take(tokens_event(KEY, 0, b"Hello"), 12.0)
    assert answer.take_delta().text == "Hel"
    answer.take(finished_event(KEY, FinishReason.LENGTH), 13.0)
    assert answer.take_delta().text == "lo"
    assert answer.reason is FinishReason.LENGTH


@pytest.mark.parametrize("has_failed", [False, True])
def test_every_place_that_the_scheduler_gave_an_attempt_is_a_decision_with_its_record(has_failed: bool) -> None:
    answer = answer_of()
    ended = failed_event(KEY, Overloaded("full")) if has_failed else finished_event(KEY, FinishReason.STOP)
    candidate = session_pb2.PlacementCandidate(role="decode", worker="d2", cost_seconds=0.5, cached_blocks=2)
    ended.placements.add(decode="d1", why="it was there")
    ended.placements.add(decode="d2", why="the other was lost", policy="ours", others=3, candidates=[candidate])
    try:
        answer.take(ended, 12.0)
    except Overloaded:
        assert has_failed
    assert [(each.decode, each.why) for each in answer.decisions] == [
        ("d1", "it was there"),
        ("d2", "the other was lost"),
    ]
    told = decision_to_pb(answer.decisions[1])
    assert (told.decode, told.policy, told.others) == ("d2", "ours", 3)
    assert [(each.worker, each.cost_seconds, each.cached_blocks) for each in told.candidates] == [("d2", 0.5, 2)]


def test_a_lost_scheduler_leaves_the_answer_open_for_another_and_its_time_under_its_name() -> None:
    answer = answer_of()
    answer.take(tokens_event(KEY, 0, b"ab", [Segment("prefill.compute", 1.0)]), 13.0)
    answer.lost(0, "the scheduler was lost", 14.0)
    assert answer.reason is None
    answer.started(14.5)
    answer.take(tokens_event(RequestKey(KEY.request_id, 1), 2, b"c"), 15.0)
    answer.take(finished_event(RequestKey(KEY.request_id, 1), FinishReason.LENGTH), 15.0)
    assert answer.take_delta().text == "abc"
    assert [decision.attempt for decision in answer.decisions] == [0, 1]
    closing = answer.closed(15.0)
    assert [segment.name for segment in closing.segments][:3] == [
        "gateway.tokenize",
        "lost.scheduler",
        "prefill.compute",
    ]
    assert closing.remainder_seconds == 0.0


@pytest.mark.parametrize(
    ("ids", "stops", "reason"),
    [
        ([*b"a", END], (), FinishReason.STOP),
        ([*b"ab#"], ("#",), FinishReason.STOP),
        ([*b"abcde"], (), FinishReason.LENGTH),
        ([*b"abcd"], (), None),
    ],
)
def test_an_answer_of_which_only_the_end_was_not_said_needs_no_other_scheduler(
    ids: list[int], stops: tuple[str, ...], reason: FinishReason | None
) -> None:
    answer = answer_of(max_tokens=5, stops=stops)
    answer.take(tokens_event(KEY, 0, ids), 12.0)
    answer.lost(0, "the scheduler was lost", 13.0)
    assert answer.reason is reason


spans = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.floats(0, 0.3)), max_size=3)


@given(st.lists(st.tuples(st.floats(0, 2), spans), max_size=6), st.floats(0, 2), st.sampled_from("fle"))
def test_segments_are_not_negative_and_sum_to_the_total(
    steps: list[tuple[float, list[tuple[str, float]]]], tail: float, ending: str
) -> None:
    answer, now = answer_of(), 11.0
    for index, (wait, segments) in enumerate(steps):
        now += wait + sum(seconds for _, seconds in segments)
        answer.take(tokens_event(KEY, index, b"x", [Segment(*segment) for segment in segments]), now)
    if ending == "f":
        answer.take(finished_event(KEY, FinishReason.LENGTH), now)
    elif ending == "l":
        answer.lost(0, "the scheduler was lost", now)
    else:
        with pytest.raises(DiptychError):
            answer.take(failed_event(KEY, Overloaded("full")), now)
    closing = answer.closed(now + tail)
    assert all(segment.seconds >= 0 for segment in closing.segments)
    assert sum(segment.seconds for segment in closing.segments) == pytest.approx(closing.total_seconds, abs=1e-9)
    assert closing.remainder_seconds == pytest.approx(0, abs=1e-9)
