"""Who gives way to whom, to let a request grow or start."""

from dataclasses import replace

from services.core.batch_events import Emitted, Finished, Preempted, Started
from services.core.request import Role
from tests.support.batches import LIMITS, Worker, key, of_kind, request

# --- to let one grow


def fill(worker: Worker) -> None:
    """Two requests that hold all four blocks and both need one more."""
    worker.add(request("old", range(8), max_tokens=8), request("new", range(20, 28), max_tokens=8))
    worker.step()


def test_the_latest_of_the_least_important_gives_its_blocks_and_comes_back_with_its_tokens() -> None:
    worker = Worker(replace(LIMITS, num_blocks=4))
    fill(worker)
    assert worker.admit() == [Preempted(key("new"))]
    answer = [event.index for event in of_kind(worker.run(), Emitted) if event.key == key("new")]
    assert answer == list(range(1, 8))
    assert worker.idle_blocks == 4


def test_of_several_below_the_last_to_come_is_preempted() -> None:
    worker = Worker(replace(LIMITS, num_blocks=4))
    worker.add(request("old", range(4)), request("middle", range(10, 16)), request("new", (20,)))
    worker.step()
    assert worker.admit() == [Preempted(key("new"))]


def test_a_more_important_request_never_yields_to_a_less_important_one() -> None:
    worker = Worker(replace(LIMITS, num_blocks=4))
    worker.add(request("low", range(8)), request("high", range(20, 28), priority=1))
    worker.step()
    assert of_kind(worker.admit(), Preempted) == [Preempted(key("low"))]


def test_a_request_that_finds_no_block_and_none_below_it_waits_with_what_it_has() -> None:
    worker = Worker(replace(LIMITS, num_blocks=5))
    fill(worker)
    assert worker.admit() == []
    assert [chunk.key for chunk in worker.plan().chunks] == [key("old")]
    assert {holding.key: holding.blocks for holding in worker.batcher.holdings(0.0)} == {key("old"): 3, key("new"): 2}


def test_blocks_that_are_being_filled_are_not_taken_and_those_of_a_request_that_lacks_only_its_first_token_are() -> (
    None
):
    worker = Worker(replace(LIMITS, num_blocks=4))
    worker.add(request("old", range(8)), request("split", range(20, 28), role=Role.DECODE))
    worker.step()
    assert worker.admit() == []
    worker.batcher.landed(key("split"), 0)
    worker.batcher.landed(key("split"), 1)
    assert worker.admit() == [Preempted(key("split"))]
    worker.batcher.first_token(key("split"), 7)
    finished = [event.key for event in of_kind(worker.run(), Finished)]
    assert finished == [key("old"), key("split")]


def test_requests_that_each_need_the_whole_pool_do_not_preempt_each_other_in_turn() -> None:
    worker = Worker(replace(LIMITS, num_blocks=4))
    worker.add(*(request(name, range(at, at + 4), max_tokens=13) for at, name in ((0, "a"), (10, "b"), (20, "c"))))
    events = worker.run()
    assert [event.key.request_id for event in of_kind(events, Finished)] == ["a", "b", "c"]
    assert key("a") not in {event.key for event in of_kind(events, Preempted)}
    assert len(of_kind(events, Preempted)) == len(of_kind(events, Started)) - 3 <= 6


# --- to let one start


def test_a_more_important_request_takes_the_place_of_the_least_important_one() -> None:
    worker = Worker(replace(LIMITS, max_running=2))
    worker.add(request("a", (1,)), request("b", (2,)))
    worker.step()
    worker.add(request("urgent", (3,), priority=1))
    assert worker.admit() == [Preempted(key("b")), Started(key("urgent"))]


def test_a_more_important_request_takes_the_blocks_of_as_many_as_it_needs_and_no_more() -> None:
    worker = Worker(replace(LIMITS, num_blocks=6))
    worker.add(*(request(name, range(at, at + 6), max_tokens=2) for at, name in ((0, "a"), (10, "b"), (20, "c"))))
    worker.step()
    worker.add(request("urgent", range(30, 42), max_tokens=1, priority=1))
    assert worker.admit() == [Preempted(key("b")), Preempted(key("c")), Started(key("urgent"))]


def test_nobody_gives_way_to_an_equal() -> None:
    worker = Worker(replace(LIMITS, max_running=1))
    worker.add(request("a", (1,), priority=1))
    worker.step()
    worker.add(request("b", (2,), priority=1))
    assert worker.admit() == []


def test_nobody_gives_way_if_that_is_not_enough() -> None:
    worker = Worker(replace(LIMITS, num_blocks=5))
    worker.add(request("high", range(10), priority=2, max_tokens=2), request("low", (50,), max_tokens=4))
    worker.step()
    worker.add(request("middle", range(20, 32), priority=1, max_tokens=1))
    assert worker.admit() == []
    assert worker.lengths() == {"high": 1, "low": 1}


def test_one_that_gave_way_is_ahead_of_those_that_came_after_it() -> None:
    worker = Worker(replace(LIMITS, max_running=1))
    worker.add(request("a", (1,), max_tokens=2))
    worker.step()
    worker.add(request("later", (2,), max_tokens=1), request("urgent", (3,), max_tokens=1, priority=1))
    assert [event.key.request_id for event in of_kind(worker.run(), Finished)] == ["urgent", "a", "later"]
