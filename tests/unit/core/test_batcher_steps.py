"""What goes into a step: answers first, then prompts, as far as the budget goes."""

from dataclasses import replace

from services.core.step_cost import StepCost
from tests.support.batches import LIMITS, Worker, request


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
