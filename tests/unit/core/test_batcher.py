from dataclasses import replace

import pytest

from services.core.batch_events import Emitted, Event, Failed, Finished, Preempted, Sealed, Started
from services.core.errors import ContextTooLong, InternalError, InvalidRequest, NeverFits, Overloaded
from services.core.plan import Draw, Drawn, History, StepResult, TokenLogprobs
from services.core.progress import State
from services.core.request import FinishReason, Role, Sampling, Stopping
from services.core.step_cost import StepCost
from tests.support.batches import LIMITS, Worker, key, request


def of_kind(events: list[Event], kind: type[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, kind)]


def test_a_request_starts_emits_its_tokens_in_order_and_finishes() -> None:
    worker = Worker()
    worker.add(request("a", range(6), max_tokens=2))
    first = worker.step(token=5)
    assert first[0] == Started(key("a")) and first[-1] == Emitted(key("a"), 0, 5)
    assert worker.step(token=6) == [Emitted(key("a"), 1, 6), Finished(key("a"), FinishReason.LENGTH)]
    assert worker.idle_blocks == 16 and worker.batcher.holdings(0.0) == []


def test_a_prompt_that_is_wholly_cached_still_computes_its_last_token() -> None:
    worker = Worker()
    worker.add(request("a", range(8), max_tokens=1))
    worker.step()
    worker.add(request("b", range(8), max_tokens=1))
    worker.admit()
    (chunk,) = worker.plan().chunks
    assert (chunk.start, chunk.tokens) == (4, (4, 5, 6, 7))
    assert chunk.draw is not None and chunk.draw.position == 8


def test_a_longer_prompt_computes_only_what_follows_the_cached_prefix() -> None:
    worker = Worker()
    worker.add(request("a", range(8), max_tokens=1))
    worker.step()
    worker.add(request("b", range(9), max_tokens=1))
    assert worker.lengths() == {"b": 1}


def test_another_tenant_hits_nothing() -> None:
    worker = Worker()
    worker.add(request("a", range(8), max_tokens=1))
    worker.step()
    worker.add(replace(request("b", range(9), max_tokens=1), salt=b"tenant"))
    assert worker.lengths() == {"b": 9}


def test_a_resumed_request_goes_on_with_the_next_index_and_counts_earlier_tokens() -> None:
    worker = Worker()
    worker.add(replace(request("a", range(3), max_tokens=3), emitted=(5, 6)))
    events = worker.step()
    assert events[-2:] == [Emitted(key("a"), 2, 7), Finished(key("a"), FinishReason.LENGTH)]


# --- composing a step


def test_decode_rows_come_first_and_prompts_share_what_the_budget_leaves_in_order() -> None:
    worker = Worker(replace(LIMITS, step_seconds=6))
    worker.add(request("a", range(4)))
    worker.step()
    worker.add(request("b", range(10, 17)), request("c", range(20, 26)))
    assert worker.lengths() == {"a": 1, "b": 5}
    assert worker.lengths() == {"a": 1, "b": 2, "c": 3}
    assert worker.lengths() == {"a": 1, "b": 1, "c": 3}


def test_a_prompt_gets_one_block_even_when_decode_rows_fill_the_budget() -> None:
    worker = Worker(replace(LIMITS, step_seconds=2))
    worker.add(request("a", (1,)), request("b", (2,)))
    worker.step()
    worker.add(request("c", range(6)), request("d", range(4)))
    assert worker.lengths() == {"a": 1, "b": 1, "c": 4}


def test_a_chunk_far_into_the_context_is_shorter() -> None:
    worker = Worker(replace(LIMITS, step_seconds=100, cost=StepCost(0.0, 1.0, 1.0)))
    worker.add(request("a", range(30)))
    lengths = [worker.lengths()["a"] for _ in range(3)]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] > lengths[2]


# --- stopping


def test_a_stop_id_is_banned_before_min_tokens_and_then_ends_the_answer_as_its_last_token() -> None:
    worker = Worker()
    worker.add(replace(request("a", (1,)), stopping=Stopping(8, min_tokens=1, stop_ids=frozenset({7}))))
    worker.admit()
    plan = worker.plan()
    assert plan.chunks[0].draw is not None and plan.chunks[0].draw.banned == {7}
    worker.apply(plan, token=5)
    plan = worker.plan()
    assert plan.chunks[0].draw is not None and plan.chunks[0].draw.banned == frozenset()
    assert worker.apply(plan, token=7) == [Emitted(key("a"), 1, 7), Finished(key("a"), FinishReason.STOP)]


def test_penalties_are_told_of_prompt_and_answer_and_the_same_of_a_resumed_answer() -> None:
    penal = Sampling(presence_penalty=0.5)

    def drawing(worker: Worker) -> Draw:
        worker.admit()
        plan = worker.plan()
        worker.apply(plan)
        [draw] = [chunk.draw for chunk in plan.chunks]
        assert draw is not None
        return draw

    def told(history: History | None) -> tuple[list[int], list[int]]:
        assert history is not None
        return list(history.prompt), list(history.answer)

    worker = Worker()
    worker.add(replace(request("a", (1, 2)), sampling=penal))
    draws = [drawing(worker) for _ in range(3)]
    assert [told(draw.history) for draw in draws] == [([1, 2], []), ([1, 2], [7]), ([1, 2], [7, 7])]
    elsewhere = Worker()
    elsewhere.add(replace(request("a", (1, 2)), sampling=penal, emitted=(7,)))
    assert told(drawing(elsewhere).history) == told(draws[1].history)


def test_without_penalties_nothing_is_told_and_nothing_is_edited() -> None:
    worker = Worker()
    worker.add(request("a", (1, 2)))
    worker.admit()
    [chunk] = worker.plan().chunks
    assert chunk.draw is not None and chunk.draw.history is None and not chunk.draw.is_edited


def test_log_probabilities_stay_with_their_token() -> None:
    worker = Worker()
    worker.add(request("a", (1, 2)))
    worker.admit()
    logprobs = TokenLogprobs(-0.5, ((7, -0.5), (3, -2.0)))
    worker.plan()
    events = worker.batcher.apply(StepResult({key("a"): Drawn(7, logprobs)}), 0.0)
    assert events == [Emitted(key("a"), 0, 7, logprobs)]


def test_a_full_context_ends_the_answer() -> None:
    worker = Worker(replace(LIMITS, max_context=6))
    worker.add(request("a", range(4), max_tokens=50))
    worker.step()
    assert worker.step()[-1] == Finished(key("a"), FinishReason.LENGTH)


# --- prefill


def test_prefill_draws_one_token_and_hands_over() -> None:
    worker = Worker()
    worker.add(request("a", range(9), role=Role.PREFILL))
    events = worker.step()
    assert [block.index for event in events if isinstance(event, Sealed) for block in event.blocks] == [0, 1]
    assert events[-2:] == [Emitted(key("a"), 0, 7), Finished(key("a"), FinishReason.HANDED_OVER)]


def test_a_first_token_that_ends_the_answer_is_no_hand_over() -> None:
    worker = Worker()
    worker.add(request("a", range(9), max_tokens=1, role=Role.PREFILL))
    assert worker.step()[-1] == Finished(key("a"), FinishReason.LENGTH)


def test_blocks_being_copied_out_are_reused_only_after_the_copy_returned() -> None:
    worker = Worker(replace(LIMITS, num_blocks=2))
    worker.add(request("a", range(8), role=Role.PREFILL))
    (sealed,) = of_kind(worker.step(), Sealed)
    worker.add(request("b", range(50, 58), role=Role.PREFILL))
    assert (worker.batcher.pinned_blocks, worker.admit()) == (2, [])
    assert isinstance(sealed, Sealed)
    for block in sealed.blocks:
        worker.batcher.unpin(block.block)
    assert worker.admit() == [Started(key("b"))]


def test_prefill_announces_cached_blocks_too_since_the_store_may_have_lost_them() -> None:
    worker = Worker()
    worker.add(request("a", range(9), max_tokens=1))
    worker.step()
    worker.add(request("b", range(9), role=Role.PREFILL))
    _, sealed = worker.admit()
    assert isinstance(sealed, Sealed) and [block.index for block in sealed.blocks] == [0, 1]
    assert worker.batcher.pinned_blocks == 2


def test_prefill_needs_no_room_for_the_answer() -> None:
    worker = Worker(replace(LIMITS, num_blocks=2))
    worker.add(request("a", range(8), max_tokens=50, role=Role.PREFILL))
    with pytest.raises(NeverFits):
        worker.add(request("b", range(8), max_tokens=50))


# --- the queue


def test_the_queue_is_by_priority_then_arrival() -> None:
    worker = Worker(replace(LIMITS, max_running=1))
    low, high = request("low", (1,), max_tokens=1), replace(request("high", (1,), max_tokens=1), priority=1)
    worker.add(low, replace(low, key=key("low2")), high)
    order = [event.key.request_id for _ in range(3) for event in of_kind(worker.step(), Started)]
    assert order == ["high", "low", "low2"]


def test_the_first_in_the_queue_is_not_overtaken_by_one_that_would_fit() -> None:
    worker = Worker(replace(LIMITS, num_blocks=4))
    worker.add(request("a", range(8)), request("big", range(20, 32), max_tokens=1), request("small", (1,)))
    assert of_kind(worker.step(), Started) == [Started(key("a"))]
    assert worker.batcher.num_waiting == 2


def test_the_watermark_is_kept_for_those_running_but_not_from_a_request_alone() -> None:
    worker = Worker(replace(LIMITS, num_blocks=4, watermark_blocks=2))
    worker.add(request("a", range(9), max_tokens=4), request("b", (1,)))
    assert worker.admit() == [Started(key("a"))]


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (request("x", ()), InvalidRequest),
        (request("x", (1,), max_tokens=0), InvalidRequest),
        (replace(request("x", (1,), max_tokens=2), emitted=(5, 6)), InvalidRequest),
        (replace(request("x", (1,)), emitted=(7,), stopping=Stopping(8, 0, frozenset({7}))), InvalidRequest),
        (request("x", range(64)), ContextTooLong),
        (request("x", range(40), max_tokens=30), NeverFits),
        (request("here", (1,)), InvalidRequest),
        (request("x", (1,)), Overloaded),
    ],
)
def test_a_request_that_cannot_be_taken_is_refused_and_changes_nothing(bad: object, error: type[Exception]) -> None:
    worker = Worker(replace(LIMITS, max_waiting=1, num_blocks=15))
    worker.add(request("here", (1,)))
    with pytest.raises(error) as refusal:
        worker.add(bad)  # type: ignore[arg-type]  # parametrize loses the type
    assert type(refusal.value) is error
    assert [holding.key for holding in worker.batcher.holdings(0.0)] == [key("here")]


# --- growth and preemption


def fill(worker: Worker) -> None:
    """Two requests that hold all four blocks and both need one more."""
    worker.add(request("old", range(8), max_tokens=8), request("new", range(20, 28), max_tokens=8))
    worker.step()


def test_the_latest_of_the_least_important_gives_its_blocks_and_comes_back_with_its_tokens() -> None:
    worker = Worker(replace(LIMITS, num_blocks=4))
    fill(worker)
    assert worker.admit() == [Preempted(key("new"))]
    events = [event for _ in range(30) if worker.batcher.holdings(0.0) for event in worker.step()]
    answer = [event.index for event in events if isinstance(event, Emitted) and event.key == key("new")]
    assert answer == list(range(1, 8))
    assert worker.idle_blocks == 4


def test_of_several_below_the_last_to_come_is_preempted() -> None:
    worker = Worker(replace(LIMITS, num_blocks=4))
    worker.add(request("old", range(4)), request("middle", range(10, 16)), request("new", (20,)))
    worker.step()
    assert worker.admit() == [Preempted(key("new"))]


def test_a_more_important_request_never_yields_to_a_less_important_one() -> None:
    worker = Worker(replace(LIMITS, num_blocks=4))
    worker.add(request("low", range(8)), replace(request("high", range(20, 28)), priority=1))
    worker.step()
    assert of_kind(worker.admit(), Preempted) == [Preempted(key("low"))]


def test_a_request_that_finds_no_block_and_none_below_it_waits_with_what_it_has() -> None:
    worker = Worker(replace(LIMITS, num_blocks=5))
    fill(worker)
    assert worker.admit() == []
    assert [chunk.key for chunk in worker.plan().chunks] == [key("old")]
    assert {holding.key: holding.blocks for holding in worker.batcher.holdings(0.0)} == {key("old"): 3, key("new"): 2}


# --- cancel, failure, deadline


def test_a_request_cancelled_while_its_step_executes_keeps_its_blocks_until_the_step_is_applied() -> None:
    worker = Worker()
    worker.add(request("a", range(8)), request("b", range(20, 24)))
    worker.admit()
    plan = worker.plan()
    assert worker.batcher.cancel(key("a")) and not worker.batcher.cancel(key("a"))
    worker.batcher.check_invariants()
    assert [(h.key, h.state, h.blocks) for h in worker.batcher.holdings(0.0)][1] == (key("a"), State.LEAVING, 2)
    events = worker.apply(plan)
    assert {event.key for event in events} == {key("b")}
    assert [holding.key for holding in worker.batcher.holdings(0.0)] == [key("b")]


def test_a_waiting_and_a_running_request_can_be_cancelled_and_an_unknown_one_is_not_here() -> None:
    worker = Worker(replace(LIMITS, max_running=1))
    worker.add(request("a", range(8)), request("b", range(8)))
    worker.step()
    assert worker.batcher.cancel(key("a")) and worker.batcher.cancel(key("b")) and not worker.batcher.cancel(key("c"))
    assert worker.batcher.holdings(0.0) == [] and worker.idle_blocks == 16


def test_a_row_gone_wrong_fails_alone_and_its_blocks_are_not_trusted_again() -> None:
    worker = Worker()
    worker.add(request("a", range(9)), request("b", range(20, 29)))
    worker.step()
    worker.plan()
    events = worker.batcher.apply(StepResult({key("b"): Drawn(5)}, {key("a"): "the logits are not numbers"}), 0.0)
    failed, emitted = events
    assert isinstance(failed, Failed) and isinstance(failed.error, InternalError)
    assert emitted == Emitted(key("b"), 1, 5)
    assert worker.batcher.cached_blocks == 0
    worker.add(request("c", range(9)))
    assert worker.lengths() == {"b": 1, "c": 9}


def test_a_draw_the_engine_left_out_is_a_failure_and_not_a_hang() -> None:
    worker = Worker()
    worker.add(request("a", (1,)))
    worker.admit()
    worker.plan()
    (failed,) = worker.batcher.apply(StepResult({}), 0.0)
    assert isinstance(failed, Failed) and worker.batcher.holdings(0.0) == []


def test_a_deadline_that_passed_ends_a_request_in_any_state() -> None:
    worker = Worker(replace(LIMITS, max_running=1))
    worker.add(replace(request("a", (1,)), deadline=5.0), replace(request("b", (1,)), deadline=5.0), request("c", (1,)))
    worker.step()
    assert worker.batcher.admit(4.9) == []
    events = worker.batcher.admit(5.0)
    assert [(type(event), event.key) for event in events] == [
        (Failed, key("a")),
        (Failed, key("b")),
        (Started, key("c")),
    ]


def test_a_step_is_applied_before_the_next_is_planned() -> None:
    worker = Worker()
    worker.add(request("a", (1,)))
    with pytest.raises(RuntimeError):
        worker.batcher.apply(StepResult({}), 0.0)
    worker.step()
    worker.plan()
    for verb in (worker.batcher.admit, worker.batcher.plan):
        with pytest.raises(RuntimeError):
            verb(0.0)


def test_an_audit_shows_age_and_stillness() -> None:
    worker = Worker()
    worker.add(request("a", (1,)))
    worker.batcher.admit(2.0)
    (holding,) = worker.batcher.holdings(5.0)
    assert (holding.state, holding.age, holding.still) == (State.RUNNING, 5.0, 3.0)
