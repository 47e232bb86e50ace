"""Workers that die of a request, and workers that leave: bystanders and streams go on elsewhere, token for token."""

import asyncio

import pytest

from services.core.errors import Poisonous
from tests.integration.test_split import expect, prompt_of
from tests.support.scripted_cluster import Answer, ScriptedCluster, scripted_cluster

DEADLY = 999
POISON = [DEADLY, *prompt_of(30, seed=77)]
PATIENT = {"trial_seconds": 10.0}
DECODES = ("decode-0", "decode-1", "decode-2")


def plant(cluster: ScriptedCluster) -> None:
    for member in cluster.members.values():
        if member.runner:
            member.runner.deadly = DEADLY


def living(cluster: ScriptedCluster) -> list[str]:
    return [name for name in DECODES if name in cluster.members and not cluster.members[name].task.done()]


async def given_up(poison: Answer, cluster: ScriptedCluster) -> None:
    await poison.end()
    assert type(poison.error) is Poisonous
    async with asyncio.timeout(5):
        while len(living(cluster)) > 1:
            await asyncio.sleep(0.01)
    assert len(living(cluster)) == 1, "two workers died of it, and no third"


@pytest.mark.parametrize("ahead", [0, 20])
async def test_a_request_that_kills_workers_is_given_up_after_two_and_takes_nobody_along(ahead: int) -> None:
    """Bystanders in the middle of their answers, and such as begin together with it."""
    async with scripted_cluster(prefill=0, decode=3, scheduling=PATIENT, queue_timeout=20) as cluster:
        plant(cluster)
        bystanders = [cluster.caller.start(prompt_of(64, seed), 200) for seed in range(6)]
        for bystander in bystanders:
            await bystander.until(ahead)
        await given_up(cluster.caller.start(POISON, 20), cluster)
        for seed, bystander in enumerate(bystanders):
            expect(await bystander.end(), prompt_of(64, seed), 200)


async def test_a_prompt_that_kills_prefill_workers_is_given_up_too() -> None:
    async with scripted_cluster(prefill=3, scheduling=PATIENT, queue_timeout=20) as cluster:
        plant(cluster)
        bystanders = [cluster.caller.start(prompt_of(64, seed), 100) for seed in range(4)]
        poison = await cluster.caller.start(POISON, 20).end()
        assert type(poison.error) is Poisonous
        for seed, bystander in enumerate(bystanders):
            expect(await bystander.end(), prompt_of(64, seed), 100)
        assert sum(cluster.members[f"prefill-{n}"].task.done() for n in range(3)) <= 2


async def busy(cluster: ScriptedCluster, kind: str) -> str:
    """The one of two workers that has requests."""
    [name] = [n for n in (f"{kind}-0", f"{kind}-1") if (await cluster.status(n)).load.running]
    return name


ONE_ATTEMPT = {"max_attempts": 1}
"""A loss would be the end; leaving in good order is none."""


@pytest.mark.parametrize("is_told_twice", [False, True])
async def test_a_stream_on_a_worker_that_leaves_goes_on_elsewhere(is_told_twice: bool) -> None:
    grace = 60.0 if is_told_twice else 0.0
    async with scripted_cluster(decode=2, scheduling=ONE_ATTEMPT, queue_timeout=0.5, drain_seconds=grace) as cluster:
        answer = cluster.caller.start(prompt_of(64), 900)
        await answer.until(20)
        leaving = cluster.members[await busy(cluster, "decode")]
        leaving.process.stopping.set()
        if is_told_twice:
            leaving.process.hurrying.set()
        await asyncio.wait_for(asyncio.shield(leaving.task), 5)
        assert not answer.is_over, "it was in the middle of its answer"
        expect(await answer.end(), prompt_of(64), 900)
        for member in cluster.members.values():
            member.process.hurrying.set()


async def test_a_prompt_on_a_prefill_worker_that_leaves_is_computed_elsewhere() -> None:
    slow = {"prefill": {"prefill.step": 0.05}}
    async with scripted_cluster(prefill=2, scheduling=ONE_ATTEMPT, faults=slow) as cluster:
        answers = [cluster.caller.start(prompt_of(400, seed), 10) for seed in range(4)]
        async with asyncio.timeout(5):
            while not (await cluster.status("prefill-0")).load.running:
                await asyncio.sleep(0)
        cluster.members["prefill-0"].process.stopping.set()
        for seed, answer in enumerate(answers):
            expect(await answer.end(), prompt_of(400, seed), 10)
