"""Decode is full for longer than every timeout: who waits keeps its blocks, is recomputed, or is told so in time."""

import asyncio
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from services.cli.cluster import LocalCluster
from services.cli.layout import ClusterLayout
from services.pb import inference_pb2_grpc
from services.runtime import dial
from tests.faults.clusters import SESSION_SECONDS, Shape, layout
from tests.faults.conftest import Known
from tests.faults.expected import Alone
from tests.faults.proof import all_right, nothing_is_left
from tests.faults.trace import Asked
from tests.faults.traffic import see
from tests.support.asking import audit
from tests.support.local_cluster import local_cluster

STEP_SECONDS = 0.1
LONG = 80
"""Tokens of the answer that fills decode: eight seconds."""
FULL_SECONDS = STEP_SECONDS * LONG
LONGEST_TIMEOUT = 3.0
"""Of all timeouts while a hand-over waits: a session's, the bus's, a store's or writer's absence, the queue's."""
WORKER_BLOCKS = 32
FILLER, WAITING = 400, 160
"""Prompt tokens: 25 blocks and 10, of 32."""


def prompt(seed: int, length: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(3, 320) for _ in range(length))


def held_for(rows: list[str], process: str, kind: str) -> int:
    """How many things of a kind a process holds, for all requests."""
    return sum(int(row.rpartition(" x")[2]) for row in rows if row.startswith(f"{process}: {kind} "))


def full(model: Path, store_blocks: int) -> ClusterLayout:
    shape = Shape(1, 1, 1, worker_blocks=WORKER_BLOCKS, store_blocks=store_blocks, max_running=16)
    made = layout(model, shape, {"decode": {"decode.step": STEP_SECONDS}})
    fields = {**made.fields, "scheduler": {**made.fields["scheduler"], "queue_timeout": "2"}}
    return replace(made, fields=fields)


@pytest.mark.anchor
async def test_a_waiting_hand_over_keeps_its_blocks_for_as_long_as_it_takes(
    alone: Alone, tiny_model: Path, tmp_path: Path
) -> None:
    asked = [Asked(prompt(1, FILLER), LONG), *(Asked(prompt(seed, WAITING), 4) for seed in (2, 3))]
    known = Known(asked, [alone.answer(one) for one in asked])
    async with (
        local_cluster(tmp_path, full(tiny_model, store_blocks=64)) as cluster,
        dial.channel(cluster.gateway.address) as channel,
    ):
        stub = inference_pb2_grpc.InferenceStub(channel)
        filling = asyncio.create_task(see(stub, asked[0]))
        await until_running(cluster)
        waiting = [asyncio.create_task(see(stub, one)) for one in asked[1:]]
        begun = await until_waiting(cluster, 2)
        kept = [held_for(await audit(cluster), "kvstore-0", "pins")]
        while not filling.done():
            kept.append(held_for(await audit(cluster), "kvstore-0", "pins"))
            waited = time.monotonic() - begun
            await asyncio.wait([filling], timeout=0.1)
        seen = [await filling, *await asyncio.gather(*waiting)]
        await nothing_is_left(cluster)
    assert waited > max(SESSION_SECONDS, LONGEST_TIMEOUT), "decode was not full for long enough"
    assert set(kept[:-2]) == {2 * WAITING // 16}, "blocks of a waiting hand-over were let go"
    all_right(known, seen)


@pytest.mark.anchor
async def test_with_a_full_store_too_everybody_is_answered_right_or_told_in_time(
    alone: Alone, tiny_model: Path, tmp_path: Path
) -> None:
    """The store has room for one waiting hand-over and a half; eight wait. Some clients wait for three seconds only."""
    asked = [Asked(prompt(1, FILLER), LONG), *(Asked(prompt(seed, WAITING), 4) for seed in range(2, 10))]
    known = Known(asked, [alone.answer(one) for one in asked])
    async with (
        local_cluster(tmp_path, full(tiny_model, store_blocks=15)) as cluster,
        dial.channel(cluster.gateway.address) as channel,
    ):
        stub = inference_pb2_grpc.InferenceStub(channel)
        filling = asyncio.create_task(see(stub, asked[0]))
        await until_running(cluster)
        patience = (LONGEST_TIMEOUT, FULL_SECONDS * 3)
        waiting = [asyncio.create_task(see(stub, one, patience[place % 2])) for place, one in enumerate(asked[1:])]
        seen = [await filling, *await asyncio.gather(*waiting)]
        await nothing_is_left(cluster)
    ends = [one.end for one in seen]
    assert ends[1::2] == ["DeadlinePassed"] * 4, "who had three seconds was told at that time"
    assert all(one.seconds < LONGEST_TIMEOUT + 1 for one in seen[1::2])
    all_right(known, seen, {"DeadlinePassed"})
    assert set(ends[2::2]) <= {"stop", "length"}


@pytest.mark.anchor
async def test_a_queue_that_is_full_refuses_in_time_and_says_so(alone: Alone, tiny_model: Path, tmp_path: Path) -> None:
    """Decode takes two at a time; the others wait for a place, for two seconds each."""
    asked = [Asked(prompt(seed, WAITING), LONG) for seed in range(6)]
    known = Known(asked, [alone.answer(one) for one in asked])
    made = full(tiny_model, store_blocks=64)
    fields = {**made.fields, "decode": {**made.fields["decode"], "max_running": "2"}}
    async with (
        local_cluster(tmp_path, replace(made, fields=fields)) as cluster,
        dial.channel(cluster.gateway.address) as channel,
    ):
        stub = inference_pb2_grpc.InferenceStub(channel)
        seen = await asyncio.gather(*(see(stub, one) for one in asked))
        await nothing_is_left(cluster)
    all_right(known, seen, {"QueueTimeout"})
    refused = [one for one in seen if one.end == "QueueTimeout"]
    assert len(refused) == 4 and all(2 <= one.seconds < 3 for one in refused)


async def until_running(cluster: LocalCluster) -> None:
    """Decode computes."""
    async with asyncio.timeout(20):
        while not any(row.startswith("decode-0: request") and "running" in row for row in await audit(cluster)):
            await asyncio.sleep(0.02)


async def until_waiting(cluster: LocalCluster, count: int) -> float:
    """So many hand-overs are complete in the store and wait for decode; when that was."""
    async with asyncio.timeout(20):
        while held_for(await audit(cluster), "kvstore-0", "pins") < count * WAITING // 16:
            await asyncio.sleep(0.02)
    return time.monotonic()
