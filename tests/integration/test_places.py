"""Which store a request goes through, with several of them: scheduler, workers and kvstores over real gRPC."""

import asyncio
import random

from tests.support.scripted_cluster import VOCAB, Answer, ScriptedCluster, scripted_cluster
from tests.support.scripted_runner import continuation


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=length)


async def asked(cluster: ScriptedCluster, count: int, first: int = 0) -> list[Answer]:
    """So many requests at once, each answered as its tokens demand."""
    prompts = [prompt_of(80, seed) for seed in range(first, first + count)]
    answers = [cluster.caller.start(prompt, 8) for prompt in prompts]
    for prompt, answer in zip(prompts, answers, strict=True):
        await answer.end()
        assert answer.error is None
        assert answer.ids == continuation(prompt, 8, VOCAB)
    return answers


async def no_store_reached(cluster: ScriptedCluster, gone: set[str]) -> None:
    """Returns once the scheduler has heard from every worker that these stores are gone."""
    addresses = {cluster.members[name].address for name in gone}
    async with asyncio.timeout(10):
        while addresses & set((await cluster.status("scheduler-0")).peers):
            await asyncio.sleep(0.01)


async def test_requests_spread_over_stores() -> None:
    async with scripted_cluster(prefill=2, decode=2, stores=2) as cluster:
        answers = await asked(cluster, 24)
        used = {answer.finished.kvstore for answer in answers}
        assert used == {cluster.members["kvstore-0"].address, cluster.members["kvstore-1"].address}


async def test_a_configured_store_that_has_died_is_used_by_nobody_and_costs_nothing() -> None:
    async with scripted_cluster(stores=2) as cluster:
        await cluster.members["kvstore-0"].kill()
        await no_store_reached(cluster, {"kvstore-0"})
        answers = await asked(cluster, 12)
        assert {answer.finished.kvstore for answer in answers} == {cluster.members["kvstore-1"].address}
        assert all(answer.finished.prefill for answer in answers)


async def test_when_all_stores_have_died_decode_workers_prefill() -> None:
    async with scripted_cluster(stores=2) as cluster:
        gone = {"kvstore-0", "kvstore-1"}
        for name in gone:
            await cluster.members[name].kill()
        await no_store_reached(cluster, gone)
        answers = await asked(cluster, 4)
        assert {(answer.finished.prefill, answer.finished.kvstore) for answer in answers} == {("", "")}


async def test_a_store_that_dies_under_its_requests_costs_no_answer() -> None:
    async with scripted_cluster(stores=2) as cluster:
        first = asyncio.create_task(asked(cluster, 8), name="asked")
        await cluster.members["kvstore-0"].kill()
        await first


async def test_a_store_that_holds_the_prompts_beginning_is_named_without_a_bus() -> None:
    async with scripted_cluster(stores=2) as cluster:
        [first] = await asked(cluster, 1)
        async with asyncio.timeout(15):
            while f"{first.finished.kvstore}=5" not in (await asked(cluster, 1))[0].finished.why:
                pass
