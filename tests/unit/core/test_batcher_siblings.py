"""Prompts with one beginning that come together: it is computed once."""

from dataclasses import replace

import pytest

from services.core.batch_events import Emitted, Started
from services.core.request import Request, Role
from tests.support.batches import LIMITS, Worker, key, of_kind, request

TEN_A_STEP = replace(LIMITS, step_seconds=10, num_blocks=40)


def prompt(name: str, tokens: range, priority: int = 0, role: Role = Role.PREFILL) -> Request:
    return request(name, tokens, role=role, priority=priority)


def started(worker: Worker) -> list[str]:
    return [event.key.request_id for event in of_kind(worker.step(), Started)]


def test_the_second_starts_when_the_first_has_computed_what_both_begin_with() -> None:
    worker = Worker(TEN_A_STEP)
    worker.add(prompt("a", range(30)), prompt("b", range(17)))
    assert [started(worker), started(worker)] == [["a"], []]
    assert of_kind(worker.admit(), Started) == [Started(key("b"))]
    (chunk,) = [chunk for chunk in worker.plan().chunks if chunk.key == key("b")]
    assert (chunk.start, chunk.tokens) == (16, (16,))


def test_a_prompt_with_another_beginning_or_another_salt_waits_for_nobody() -> None:
    worker = Worker(TEN_A_STEP)
    salted = replace(prompt("c", range(30)), salt=b"tenant")
    worker.add(prompt("a", range(30)), prompt("b", range(1, 30)), salted, prompt("d", range(4)))
    assert started(worker) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("role", [Role.WHOLE, Role.DECODE])
def test_only_prefill_waits(role: Role) -> None:
    worker = Worker(TEN_A_STEP)
    worker.add(prompt("a", range(30), role=Role.WHOLE), prompt("b", range(30), role=role))
    assert started(worker) == ["a", "b"]


def test_a_more_important_one_waits_for_no_less_important_one() -> None:
    worker = Worker(TEN_A_STEP)
    worker.add(prompt("a", range(30)))
    worker.step()
    worker.add(prompt("b", range(30), priority=1))
    assert started(worker) == ["b"]


def test_when_the_first_is_cancelled_the_second_goes_on_from_where_it_was() -> None:
    worker = Worker(TEN_A_STEP)
    worker.add(prompt("a", range(30)), prompt("b", range(30)))
    worker.step()
    worker.batcher.cancel(key("a"))
    worker.admit()
    (chunk,) = worker.plan().chunks
    assert (chunk.key, chunk.start) == (key("b"), 8)


def test_many_equal_prompts_cost_one_and_all_are_answered() -> None:
    worker = Worker(TEN_A_STEP)
    worker.add(*(prompt(name, range(30)) for name in "abcd"))
    events = worker.run()
    assert [event.key.request_id for event in of_kind(events, Emitted)] == list("abcd")
    assert worker.batcher.reuse.take_prefix() == {"own": 3 * 28, "store": 0, "computed": 30 + 3 * 2}
