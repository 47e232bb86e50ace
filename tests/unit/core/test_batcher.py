"""One request's life: steps, stopping, what an engine is told; and prefill's part of it."""

from dataclasses import replace

import pytest

from services.core.batch_events import Emitted, Finished, Sealed, Started
from services.core.plan import Draw, Drawn, History, StepResult, TokenLogprobs
from services.core.progress import State
from services.core.request import FinishReason, Role, Sampling, Stopping
from tests.support.batches import LIMITS, Worker, key, of_kind, request


def test_a_request_starts_emits_its_tokens_in_order_and_finishes() -> None:
    worker = Worker()
    worker.add(request("a", range(6), max_tokens=2))
    first = worker.step(token=5)
    assert first[0] == Started(key("a")) and first[-1] == Emitted(key("a"), 0, 5)
    assert worker.step(token=6) == [Emitted(key("a"), 1, 6), Finished(key("a"), FinishReason.LENGTH)]
    assert worker.idle_blocks == 16 and worker.batcher.holdings(0.0) == []


def test_a_resumed_request_goes_on_with_the_next_index_and_counts_earlier_tokens() -> None:
    worker = Worker()
    worker.add(replace(request("a", range(3), max_tokens=3), emitted=(5, 6)))
    events = worker.step()
    assert events[-2:] == [Emitted(key("a"), 2, 7), Finished(key("a"), FinishReason.LENGTH)]


def test_log_probabilities_stay_with_their_token() -> None:
    worker = Worker()
    worker.add(request("a", (1, 2)))
    worker.admit()
    logprobs = TokenLogprobs(-0.5, ((7, -0.5), (3, -2.0)))
    worker.plan()
    events = worker.batcher.apply(StepResult({key("a"): Drawn(7, logprobs)}), 0.0)
    assert events == [Emitted(key("a"), 0, 7, logprobs)]


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


def test_a_full_context_ends_the_answer() -> None:
    worker = Worker(replace(LIMITS, max_context=6))
    worker.add(request("a", range(4), max_tokens=50))
    worker.step()
    assert worker.step()[-1] == Finished(key("a"), FinishReason.LENGTH)


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
