"""Prefixes found in the cache, of requests that run and of those that ended."""

from dataclasses import replace

import pytest

from services.core.batch_events import Preempted, Started
from tests.support.batches import LIMITS, Worker, key, of_kind, request


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


@pytest.mark.parametrize("is_running", [False, True])
@pytest.mark.parametrize("length", range(1, 14))
def test_all_full_blocks_but_the_one_with_the_last_token_are_found(length: int, is_running: bool) -> None:
    worker = Worker()
    worker.add(request("a", range(12), max_tokens=2 if is_running else 1))
    worker.step()
    worker.add(request("b", range(length)))
    assert worker.lengths()["b"] == length - (length - 1) // 4 * 4


def test_a_prefix_is_found_while_the_rest_of_its_prompt_is_computed() -> None:
    worker = Worker(replace(LIMITS, step_seconds=6))
    worker.add(request("a", range(12)))
    worker.step()
    worker.add(request("b", range(6)))
    assert worker.lengths() == {"a": 6}
    assert worker.lengths() == {"a": 1, "b": 2}


def test_a_shared_prefix_stays_with_the_one_that_runs_when_the_other_goes() -> None:
    worker = Worker(replace(LIMITS, num_blocks=4))
    worker.add(request("a", range(9), max_tokens=4))
    worker.step()
    worker.add(request("b", range(9), max_tokens=4))
    worker.step()
    assert worker.idle_blocks == 0, "two shared blocks and a last one each"
    worker.batcher.cancel(key("a"))
    worker.batcher.check_invariants()
    assert worker.idle_blocks == 1
    worker.add(request("other", range(50, 58), max_tokens=1))
    assert worker.lengths() == {"b": 1}


def test_a_request_that_is_preempted_finds_what_it_computed_and_counts_only_what_others_had() -> None:
    worker = Worker(replace(LIMITS, num_blocks=4))
    worker.add(request("a", range(4), max_tokens=1))
    worker.step()
    worker.add(request("b", range(13), max_tokens=3))
    worker.step()
    worker.add(request("urgent", (50,), max_tokens=1, priority=1))
    events = worker.step()
    assert of_kind(events, Preempted) == [Preempted(key("b"))]
    started = worker.admit()
    assert [event.cached_tokens for event in of_kind(started, Started)] == [4]
    (chunk,) = worker.plan().chunks
    assert chunk.start == 12, "the urgent one took the block that was not full"
