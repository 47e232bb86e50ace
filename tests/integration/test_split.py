"""Scheduler, workers and kvstore together: every answer is the one its tokens demand, whatever happens on the way."""

import asyncio
import random
from dataclasses import replace

import pytest

from services.core.errors import (
    ContextTooLong,
    DeadlinePassed,
    InvalidRequest,
    NeverFits,
    NoWorkers,
    QueueTimeout,
    WorkerLost,
)
from services.core.ledger import merged
from services.core.request import FinishReason
from tests.support.scripted_cluster import LIMITS, VOCAB, Answer, ScriptedCluster, scripted_cluster
from tests.support.scripted_runner import continuation, scripted_logprobs

SEED = 20_26


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=length)


def expect(answer: Answer, prompt: list[int], tokens: int) -> None:
    assert answer.error is None
    assert answer.reason is FinishReason.LENGTH
    assert answer.ids == continuation(prompt, tokens, VOCAB)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 33, 200])
async def test_a_split_answer_is_right_at_every_block_boundary(length: int) -> None:
    async with scripted_cluster() as cluster:
        for _ in range(2):
            prompt = prompt_of(length)
            answer = await cluster.caller.start(prompt, 40).end()
            expect(answer, prompt, 40)
            assert answer.finished.prefill and answer.finished.decode and answer.finished.kvstore
        names = [segment.name for segment in merged(answer.segments)]
        assert names[:4] == ["scheduler.queue", "scheduler.place", "hop.scheduler_prefill", "prefill.queue"]
        assert names[-1] == "decode.run"


async def test_the_second_time_a_prompt_is_found_and_not_computed() -> None:
    async with scripted_cluster() as cluster:
        prompt = prompt_of(100)
        first = await cluster.caller.start(prompt, 4).end()
        await cluster.nothing_held()
        second = await cluster.caller.start(prompt, 4).end()
        assert first.ids == second.ids == continuation(prompt, 4, VOCAB)
        assert (first.finished.cached_tokens, second.finished.cached_tokens) == (0, 96)


async def test_a_request_started_at_anothers_first_token_finds_their_prompt_computed() -> None:
    """What several answers to one prompt count on."""
    async with scripted_cluster() as cluster:
        prompt = prompt_of(100)
        first = cluster.caller.start(prompt, 30)
        await first.until(1)
        second = await cluster.caller.start(prompt, 30).end()
        expect(second, prompt, 30)
        assert second.finished.cached_tokens == 96
        expect(await first.end(), prompt, 30)


async def test_many_at_once_with_shared_prefixes_in_pools_too_small_for_all() -> None:
    async with scripted_cluster(prefill=2, decode=2, limits=replace(LIMITS, num_blocks=24)) as cluster:
        shuffle = random.Random(SEED)
        shared = prompt_of(48, seed=1)
        prompts = [shared[: shuffle.choice((0, 20, 48))] + prompt_of(shuffle.randint(1, 150), n) for n in range(60)]
        answers = [cluster.caller.start(prompt, 30) for prompt in prompts]
        for prompt, answer in zip(prompts, answers, strict=True):
            expect(await answer.end(), prompt, 30)


async def test_without_prefill_workers_the_decode_worker_does_both() -> None:
    async with scripted_cluster(prefill=0) as cluster:
        prompt = prompt_of(70)
        answer = await cluster.caller.start(prompt, 20).end()
        expect(answer, prompt, 20)
        assert (answer.finished.prefill, answer.finished.kvstore) == ("", "")
        names = {segment.name for segment in answer.segments}
        assert {"decode.queue", "decode.prefill", "decode.run"} <= names


async def test_a_first_token_that_ends_the_answer_ends_it_on_prefill() -> None:
    async with scripted_cluster() as cluster:
        prompt = prompt_of(40)
        first = continuation(prompt, 1, VOCAB)
        by_length = await cluster.caller.start(prompt, 1).end()
        assert (by_length.ids, by_length.reason) == (first, FinishReason.LENGTH)
        by_stop = await cluster.caller.start(prompt, 9, stop_ids=frozenset(first)).end()
        assert (by_stop.ids, by_stop.reason) == (first, FinishReason.STOP)


async def test_a_stop_string_seen_by_the_gateway_completes_the_answer() -> None:
    async with scripted_cluster() as cluster:
        answer = cluster.caller.start(prompt_of(40), 900)
        await answer.until(5)
        cluster.caller.finish(answer, 4)
        await answer.end()
        assert answer.reason is FinishReason.STOP
        assert "decode.run" in {segment.name for segment in answer.segments}


@pytest.mark.parametrize("tokens", [0, 1, 5])
async def test_a_cancelled_request_leaves_nothing_in_any_phase(tokens: int) -> None:
    async with scripted_cluster() as cluster:
        answer = cluster.caller.start(prompt_of(300), 600)
        await answer.until(tokens)
        cluster.caller.cancel(answer)
        await cluster.nothing_held()
        assert not answer.is_over


async def test_a_decode_worker_that_dies_mid_stream_costs_no_token() -> None:
    async with scripted_cluster(decode=2) as cluster:
        answers = [cluster.caller.start(prompt_of(64, seed), 500) for seed in range(4)]
        for answer in answers:
            await answer.until(20)
        [busy, *_] = [n for n in ("decode-0", "decode-1") if (await cluster.status(n)).load.running]
        await cluster.members[busy].kill()
        for seed, answer in enumerate(answers):
            expect(await answer.end(), prompt_of(64, seed), 500)


@pytest.mark.parametrize("most", [None, 0, 3])
async def test_log_probabilities_come_with_every_token_whoever_drew_it(most: int | None) -> None:
    async with scripted_cluster(decode=2) as cluster:
        prompt = prompt_of(64)
        answer = cluster.caller.start(prompt, 300, logprobs=most)
        await answer.until(20)
        [busy, *_] = [n for n in ("decode-0", "decode-1") if (await cluster.status(n)).load.running]
        await cluster.members[busy].kill()
        expect(await answer.end(), prompt, 300)
        reported = [scripted_logprobs(token, most) for token in answer.ids]
        assert answer.logprobs == ([] if most is None else reported)


async def test_a_prefill_worker_that_dies_mid_prefill_is_replaced() -> None:
    async with scripted_cluster(prefill=2) as cluster:
        answers = [cluster.caller.start(prompt_of(400, seed), 10) for seed in range(4)]
        await asyncio.sleep(0)
        await cluster.members["prefill-0"].kill()
        for seed, answer in enumerate(answers):
            expect(await answer.end(), prompt_of(400, seed), 10)


async def test_a_kvstore_that_dies_costs_time_and_no_answer() -> None:
    async with scripted_cluster() as cluster:
        answers = [cluster.caller.start(prompt_of(400, seed), 50) for seed in range(3)]
        await cluster.members["kvstore-0"].kill()
        for seed, answer in enumerate(answers):
            expect(await answer.end(), prompt_of(400, seed), 50)


async def test_when_every_decode_worker_is_gone_the_request_is_told_so() -> None:
    async with scripted_cluster() as cluster:
        answer = cluster.caller.start(prompt_of(40), 900)
        await answer.until(3)
        await cluster.members["decode-0"].kill()
        await answer.end()
        assert isinstance(answer.error, WorkerLost | NoWorkers | QueueTimeout)


async def test_a_deadline_is_kept_in_the_queue_and_in_the_middle() -> None:
    async with scripted_cluster(faults={"decode": {"decode.step": 0.005}}) as cluster:
        now = asyncio.get_running_loop().time()
        late = await cluster.caller.start(prompt_of(40), 5, deadline=now).end()
        running = cluster.caller.start(prompt_of(40), 900, deadline=now + 0.4)
        await running.end()
        for answer in (late, running):
            assert isinstance(answer.error, DeadlinePassed)


@pytest.mark.parametrize(
    ("prompt", "tokens", "error"),
    [
        ([VOCAB], 4, InvalidRequest),
        ([], 4, InvalidRequest),
        (prompt_of(1000), 4, ContextTooLong),
    ],
)
async def test_what_can_never_work_is_refused_and_not_retried(
    prompt: list[int], tokens: int, error: type[Exception]
) -> None:
    async with scripted_cluster() as cluster:
        answer = await cluster.caller.start(prompt, tokens).end()
        assert type(answer.error) is error


async def test_a_request_larger_than_the_pool_is_refused_at_once() -> None:
    async with scripted_cluster(limits=replace(LIMITS, num_blocks=8)) as cluster:
        answer = await cluster.caller.start(prompt_of(200), 4).end()
        assert type(answer.error) is NeverFits


async def test_a_stop_string_seen_while_the_story_is_queued_again_ends_it_and_harms_nobody() -> None:
    async with scripted_cluster() as cluster:
        answer = cluster.caller.start(prompt_of(40), 900)
        await answer.until(5)
        await cluster.members["decode-0"].kill()
        async with asyncio.timeout(5):
            while not any("queued" in row for row in await cluster.held()):
                await asyncio.sleep(0.01)
        cluster.caller.finish(answer, 4)
        assert (await answer.end()).reason is FinishReason.STOP
        later = cluster.caller.start(prompt_of(40), 5)
        await later.end()
        assert isinstance(later.error, QueueTimeout), "the scheduler lives and answers"


async def test_a_stop_string_is_not_forgotten_when_its_worker_dies() -> None:
    async with scripted_cluster(decode=2) as cluster:
        answer = cluster.caller.start(prompt_of(40), 900)
        await answer.until(5)
        [busy] = [n for n in ("decode-0", "decode-1") if (await cluster.status(n)).load.running]
        cluster.caller.finish(answer, 4)
        await cluster.members[busy].kill()
        assert (await answer.end()).reason is FinishReason.STOP
        assert len(answer.ids) < 900


async def test_a_worker_that_drains_is_left_alone_and_fails_nobody() -> None:
    async with scripted_cluster(decode=2, queue_timeout=30) as cluster:
        running = cluster.caller.start(prompt_of(40), 300)
        await running.until(3)
        cluster.members["decode-0"].process.stopping.set()
        answers = [cluster.caller.start(prompt_of(30, seed), 20) for seed in range(8)]
        for seed, answer in enumerate(answers):
            expect(await answer.end(), prompt_of(30, seed), 20)
        expect(await running.end(), prompt_of(40), 300)


async def held_by(cluster: ScriptedCluster, name: str) -> list[str]:
    return [row for row in await cluster.held() if row.startswith(name)]


async def test_a_caller_that_goes_away_takes_its_requests_with_it() -> None:
    async with scripted_cluster() as cluster:
        cluster.caller.start(prompt_of(40), 900)
        answer = cluster.caller.start(prompt_of(80), 900)
        await answer.until(3)
        assert await held_by(cluster, "decode-0")
        cluster.caller._session.end()
        await cluster.nothing_held()
