"""Who is taken, who starts and when: places, blocks, order."""

from dataclasses import replace

import pytest

from services.core.batch_events import Emitted, Started
from services.core.errors import ContextTooLong, InvalidRequest, NeverFits, Overloaded
from services.core.request import Role, Stopping
from tests.support.batches import LIMITS, Worker, key, of_kind, request


def test_the_queue_is_by_priority_then_arrival() -> None:
    worker = Worker(replace(LIMITS, max_running=1))
    low, high = request("low", (1,), max_tokens=1), request("high", (1,), max_tokens=1, priority=1)
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


def test_a_worker_without_a_queue_takes_what_runs_at_once_and_no_more() -> None:
    worker = Worker(replace(LIMITS, max_waiting=0, max_running=2))
    worker.add(request("a", (1,)), request("b", (2,)))
    with pytest.raises(Overloaded):
        worker.add(request("c", (3,)))
    worker.batcher.admit(0.0)
    with pytest.raises(Overloaded):
        worker.add(request("c", (3,)))
    worker.batcher.cancel(key("a"))
    worker.add(request("c", (3,)))


def test_prefill_needs_no_room_for_the_answer() -> None:
    worker = Worker(replace(LIMITS, num_blocks=2))
    worker.add(request("a", range(8), max_tokens=50, role=Role.PREFILL))
    with pytest.raises(NeverFits):
        worker.add(request("b", range(8), max_tokens=50))


def test_a_request_that_fills_the_pool_to_the_last_position_is_taken_and_one_token_more_is_not() -> None:
    worker = Worker(replace(LIMITS, num_blocks=4))
    with pytest.raises(NeverFits):
        worker.add(request("a", range(8), max_tokens=10))
    worker.add(request("a", range(8), max_tokens=9))
    assert len(of_kind(worker.run(), Emitted)) == 9


@pytest.mark.parametrize(("later", "first"), [(9.0, "high"), (11.0, "low")])
def test_a_level_of_priority_is_a_head_start_and_no_more_so_nobody_waits_for_ever(later: float, first: str) -> None:
    worker = Worker(replace(LIMITS, max_running=1, head_start=10.0))
    worker.add(request("now", (1,), max_tokens=1, priority=9))
    worker.step()
    worker.batcher.add(request("low", (1,), max_tokens=1), 0.0)
    worker.batcher.add(request("high", (1,), max_tokens=1, priority=1), later)
    assert [event.key.request_id for event in of_kind(worker.step(), Started)] == [first]


def test_a_negative_head_start_is_no_limit() -> None:
    with pytest.raises(ValueError, match="head_start"):
        replace(LIMITS, head_start=-1.0)
