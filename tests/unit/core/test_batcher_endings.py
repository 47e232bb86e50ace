"""Cancelled, failed, out of time: what is let go, and when."""

from dataclasses import replace

from services.core.batch_events import Emitted, Failed, Started
from services.core.errors import InternalError
from services.core.plan import Drawn, StepResult
from services.core.progress import State
from tests.support.batches import LIMITS, Worker, key, request


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
