"""The decode side of a hand-over: what comes in while, before and after the request has room."""

from dataclasses import replace

import pytest

from services.core.batch_events import Emitted, FetchBlock, Preempted, Reserved, Started
from services.core.batcher import Batcher
from services.core.errors import InvalidRequest
from services.core.progress import State
from services.core.request import Role
from tests.support.batches import LIMITS, Worker, key, request


def reserved(worker: Worker) -> tuple[FetchBlock, ...]:
    """Blocks to fetch for the one request that starts now."""
    started, event = worker.admit()
    assert isinstance(started, Started) and isinstance(event, Reserved)
    return event.fetch


def state_of(batcher: Batcher) -> State:
    (holding,) = batcher.holdings(0.0)
    return holding.state


def test_decode_fetches_the_full_prompt_blocks_then_computes_tail_and_first_token_as_one_chunk() -> None:
    worker = Worker()
    worker.add(request("a", range(10), role=Role.DECODE))
    fetch = reserved(worker)
    assert [wanted.index for wanted in fetch] == [0, 1]
    for wanted in fetch:
        worker.batcher.landed(key("a"), wanted.index)
    assert worker.batcher.plan(0.0) is None
    worker.batcher.first_token(key("a"), 5)
    worker.admit()
    plan = worker.plan()
    assert (plan.chunks[0].start, plan.chunks[0].tokens) == (8, (8, 9, 5))
    assert worker.apply(plan) == [Emitted(key("a"), 1, 7)]


def test_the_first_token_may_come_before_the_request_has_room() -> None:
    worker = Worker()
    worker.add(request("a", range(7), role=Role.DECODE))
    worker.batcher.first_token(key("a"), 5)
    (wanted,) = reserved(worker)
    worker.batcher.landed(key("a"), wanted.index)
    assert worker.lengths() == {"a": 4}


def test_a_request_that_finds_its_first_token_and_all_blocks_takes_part_in_the_next_step() -> None:
    worker = Worker()
    worker.add(request("a", range(3), role=Role.DECODE))
    worker.batcher.first_token(key("a"), 5)
    assert reserved(worker) == ()
    assert [len(chunk.tokens) for chunk in worker.plan().chunks] == [4]


def test_blocks_may_land_in_any_order() -> None:
    worker = Worker()
    worker.add(request("a", range(13), role=Role.DECODE))
    reserved(worker)
    worker.batcher.first_token(key("a"), 5)
    for index in (2, 0, 1):
        worker.batcher.landed(key("a"), index)
    assert worker.lengths() == {"a": 2}


def test_only_blocks_that_are_not_cached_are_fetched() -> None:
    worker = Worker()
    worker.add(request("a", range(4), max_tokens=1))
    worker.step()
    worker.add(request("b", range(12), role=Role.DECODE))
    assert [wanted.index for wanted in reserved(worker)] == [1, 2]


def test_landed_blocks_are_cached_for_others() -> None:
    worker = Worker()
    worker.add(request("a", range(8), role=Role.DECODE))
    for wanted in reserved(worker):
        worker.batcher.landed(key("a"), wanted.index)
    worker.add(request("b", range(8), role=Role.DECODE))
    assert reserved(worker) == ()


def test_all_blocks_cached_leaves_only_the_first_token_to_wait_for() -> None:
    worker = Worker()
    worker.add(request("a", range(8), max_tokens=1))
    worker.step()
    worker.add(request("b", range(8), role=Role.DECODE))
    assert reserved(worker) == ()
    worker.batcher.first_token(key("b"), 5)
    assert worker.lengths() == {"b": 1}


def test_only_what_does_not_land_is_computed_here() -> None:
    worker = Worker()
    worker.add(request("a", range(12), role=Role.DECODE))
    reserved(worker)
    worker.batcher.first_token(key("a"), 5)
    worker.batcher.landed(key("a"), 2)
    worker.batcher.landed(key("a"), 0)
    worker.batcher.no_more(key("a"))
    worker.batcher.check_invariants()
    assert worker.lengths() == {"a": 4}
    worker.batcher.check_invariants()
    assert worker.lengths() == {"a": 1}


def test_a_copy_that_failed_ends_only_its_own_block() -> None:
    worker = Worker()
    worker.add(request("a", range(8), role=Role.DECODE))
    worker.batcher.first_token(key("a"), 5)
    first, second = reserved(worker)
    worker.batcher.unpin(second.block)
    assert state_of(worker.batcher) is State.FETCHING
    worker.batcher.landed(key("a"), first.index)
    assert worker.lengths() == {"a": 5}


def test_a_fetch_given_up_before_the_request_has_room_prefills_here() -> None:
    worker = Worker()
    worker.add(request("a", range(8), role=Role.DECODE))
    worker.batcher.no_more(key("a"))
    assert worker.admit() == [Started(key("a"))]
    assert worker.batcher.plan(0.0) is None
    worker.batcher.first_token(key("a"), 5)
    assert worker.lengths() == {"a": 9}


def test_a_resumed_request_is_handed_its_emitted_tokens_blocks_too() -> None:
    worker = Worker()
    worker.add(replace(request("a", range(6), role=Role.DECODE), emitted=(8, 8, 8)))
    assert [wanted.index for wanted in reserved(worker)] == [0, 1]
    worker.batcher.no_more(key("a"))
    worker.batcher.first_token(key("a"), 5)
    assert worker.step()[-1] == Emitted(key("a"), 4, 7)


def test_a_block_being_filled_for_a_cancelled_request_is_reused_only_after_the_copy_returned() -> None:
    worker = Worker()
    worker.add(request("a", range(8), role=Role.DECODE))
    first, second = reserved(worker)
    worker.batcher.landed(key("a"), first.index)
    assert worker.batcher.cancel(key("a"))
    worker.batcher.check_invariants()
    assert (state_of(worker.batcher), worker.idle_blocks) == (State.LEAVING, 15)
    worker.batcher.landed(key("a"), second.index)
    worker.batcher.check_invariants()
    assert (worker.batcher.holdings(0.0), worker.idle_blocks) == ([], 16)


def test_an_attempt_is_not_taken_again_while_blocks_are_still_filled_for_it() -> None:
    worker = Worker()
    worker.add(request("a", range(8), role=Role.DECODE))
    reserved(worker)
    worker.batcher.cancel(key("a"))
    with pytest.raises(InvalidRequest):
        worker.add(request("a", range(8), role=Role.DECODE))
    worker.batcher.no_more(key("a"))
    worker.add(request("a", range(8), role=Role.DECODE))


def test_a_cancelled_request_is_gone_when_its_fetch_is_given_up() -> None:
    worker = Worker()
    worker.add(request("a", range(8), role=Role.DECODE))
    reserved(worker)
    worker.batcher.cancel(key("a"))
    worker.batcher.no_more(key("a"))
    assert (worker.batcher.holdings(0.0), worker.idle_blocks) == ([], 16)


def test_late_and_repeated_messages_change_nothing() -> None:
    worker = Worker()
    worker.add(request("a", range(8), role=Role.DECODE))
    (first, _) = reserved(worker)
    for _ in range(2):
        worker.batcher.landed(key("a"), first.index)
        worker.batcher.first_token(key("a"), 5)
    worker.batcher.no_more(key("a"))
    worker.batcher.landed(key("a"), 1)
    assert worker.lengths() == {"a": 5}
    worker.batcher.cancel(key("a"))
    worker.batcher.landed(key("a"), 0)
    worker.batcher.first_token(key("a"), 5)
    worker.batcher.no_more(key("unknown"))
    worker.batcher.check_invariants()
    assert worker.batcher.holdings(0.0) == []


def test_a_first_token_that_ends_the_answer_computes_nothing_and_waits_for_the_cancel() -> None:
    worker = Worker()
    worker.add(request("a", range(8), max_tokens=1, role=Role.DECODE))
    reserved(worker)
    worker.batcher.first_token(key("a"), 5)
    worker.batcher.no_more(key("a"))
    assert worker.batcher.plan(0.0) is None
    assert worker.batcher.cancel(key("a")) and worker.idle_blocks == 16


def test_a_preempted_decode_request_recomputes_here_and_fetches_nothing_again() -> None:
    worker = Worker(replace(LIMITS, num_blocks=5))
    worker.add(replace(request("old", range(20, 28)), priority=1))
    worker.step()
    worker.add(request("a", range(8), role=Role.DECODE))
    for wanted in reserved(worker):
        worker.batcher.landed(key("a"), wanted.index)
    worker.batcher.first_token(key("a"), 5)
    events = [event for _ in range(5) for event in worker.step()]
    assert Preempted(key("a")) in events
    events = [event for _ in range(20) if worker.batcher.holdings(0.0) for event in worker.step()]
    assert not any(isinstance(event, Reserved) for event in events)
    answer = [event.index for event in events if isinstance(event, Emitted) and event.key == key("a")]
    assert answer and answer[-1] == 7


def test_reserving_is_all_blocks_and_the_watermark_or_nothing() -> None:
    worker = Worker(replace(LIMITS, num_blocks=5, watermark_blocks=2))
    worker.add(request("a", range(4), max_tokens=4), request("b", range(20, 32), role=Role.DECODE, max_tokens=4))
    assert worker.admit() == [Started(key("a"))]
    assert worker.batcher.num_waiting == 1
