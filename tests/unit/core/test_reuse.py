"""Where KV came from, and what was computed more than once."""

from dataclasses import replace

from services.core.batch_events import Preempted, Reserved
from services.core.prefix_fetch import FetchCost, KnownPrefix
from services.core.request import Role
from tests.support.batches import LIMITS, Worker, key, of_kind, request

CHEAP = KnownPrefix(2, FetchCost(0.0, 0.1))


def test_a_prompt_counts_once_by_where_it_came_from() -> None:
    worker = Worker()
    worker.add(request("a", range(5), max_tokens=3))
    worker.run()
    assert worker.batcher.reuse.take_prefix() == {"own": 0, "store": 0, "computed": 5}
    worker.batcher.add(request("b", range(14), max_tokens=3), 0.0, replace(CHEAP, blocks=3))
    (reserved,) = of_kind(worker.admit(), Reserved)
    for wanted in reserved.fetch:
        worker.batcher.landed(key("b"), wanted.index)
    worker.run()
    assert worker.batcher.reuse.take_prefix() == {"own": 4, "store": 8, "computed": 2}
    assert worker.batcher.reuse.take_prefix() == worker.batcher.reuse.take_again() == {}


def test_what_was_handed_over_counts_where_it_was_computed() -> None:
    worker = Worker()
    worker.add(request("a", range(10), role=Role.DECODE))
    worker.admit()
    worker.batcher.landed(key("a"), 0)
    worker.batcher.landed(key("a"), 1)
    worker.batcher.first_token(key("a"), 5)
    worker.run()
    assert worker.batcher.reuse.take_prefix() == worker.batcher.reuse.take_again() == {}


def test_blocks_that_did_not_come_are_computed_again_and_no_others() -> None:
    worker = Worker()
    worker.add(request("a", range(14), role=Role.DECODE))
    worker.admit()
    worker.batcher.landed(key("a"), 1)
    worker.batcher.no_more(key("a"))
    worker.batcher.first_token(key("a"), 5)
    worker.run()
    assert worker.batcher.reuse.take_again() == {"lost": 8}


def test_a_resumed_request_computes_again_what_is_not_found() -> None:
    worker = Worker()
    resumed = replace(request("a", range(10)), emitted=(7, 7, 7))
    worker.batcher.add(resumed, 0.0, CHEAP)
    (reserved,) = of_kind(worker.admit(), Reserved)
    worker.batcher.landed(key("a"), reserved.fetch[0].index)
    worker.batcher.landed(key("a"), reserved.fetch[1].index)
    worker.run()
    assert worker.batcher.reuse.take_again() == {"resumed": 4}
    assert worker.batcher.reuse.take_prefix() == {"own": 0, "store": 8, "computed": 2}


def test_one_that_was_preempted_computes_again_what_is_gone() -> None:
    worker = Worker(replace(LIMITS, num_blocks=4))
    worker.add(request("old", range(8)), request("new", range(20, 28)))
    worker.step()
    assert of_kind(worker.step(), Preempted) == [Preempted(key("new"))]
    worker.run()
    again = worker.batcher.reuse.take_again()
    assert set(again) == {"preempted"} and 0 < again["preempted"] <= 8
