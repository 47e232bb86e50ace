"""A cancelled request whose blocks are still on their way never touches the request that takes its pages.

Every pool holds exactly one request, so the next one gets the very pages. The delay is inside the copy, on the thread
that copies: a cancellation cannot take it back.
"""

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from services.cli.cluster import LocalCluster
from services.pb import inference_pb2_grpc
from services.runtime import dial
from tests.faults.clusters import SESSION_SECONDS, Plants, Shape, layout
from tests.faults.conftest import Known
from tests.faults.expected import Alone
from tests.faults.proof import all_right, counted, nothing_is_left, times_struck
from tests.faults.trace import Asked
from tests.faults.traffic import Seen, see
from tests.support.asking import audit
from tests.support.local_cluster import local_cluster

TRIES = 100
PAUSES = 10
PROMPT, TOKENS = 160, 6
BLOCKS = (PROMPT + TOKENS) // 16 + 1
EXACT = Shape(1, 1, 1, worker_blocks=BLOCKS, store_blocks=PROMPT // 16)
COPY_SECONDS = 0.02
"""Of one block."""
LONGEST_COPY = COPY_SECONDS * (PROMPT // 16)
"""Of a request's blocks, one after the other."""


def pairs(alone: Alone, count: int) -> Known:
    """Requests two by two: one whose client leaves, and the next, which fetches other blocks into the pages, finds the
    same ones, or fills the pages with an answer while late blocks still come."""
    rng = random.Random(count)
    asked = []
    for number in range(count):
        prompt = _prompt(rng, PROMPT)
        nexts = (Asked(_prompt(rng, PROMPT), TOKENS), Asked(prompt, TOKENS), Asked(_prompt(rng, 9), PROMPT))
        asked.append(Asked(prompt, TOKENS, leaves_after=1, lingers=rng.uniform(0, LONGEST_COPY / 2)))
        asked.append(nexts[number % len(nexts)])
    return Known(asked, [alone.answer(one) for one in asked])


def _prompt(rng: random.Random, length: int) -> tuple[int, ...]:
    return tuple(rng.randrange(3, 320) for _ in range(length))


@pytest.mark.anchor
@pytest.mark.parametrize("way", ["near", "far"])
@pytest.mark.parametrize(
    "faults",
    [
        {"prefill": {"kv.out": COPY_SECONDS}},
        {"decode": {"kv.in": COPY_SECONDS}},
        {"prefill": {"kv.out": COPY_SECONDS}, "decode": {"kv.in": COPY_SECONDS}},
    ],
    ids=["out", "in", "out and in"],
)
async def test_a_request_gets_its_own_tokens_on_pages_that_late_blocks_were_meant_for(
    way: Literal["near", "far"], faults: Mapping[str, Plants], alone: Alone, tiny_model: Path, tmp_path: Path
) -> None:
    known = pairs(alone, TRIES)
    seen: list[Seen] = []
    in_flight = 0
    async with (
        local_cluster(tmp_path, layout(tiny_model, replace(EXACT, way=way), faults)) as cluster,
        dial.channel(cluster.gateway.address) as channel,
    ):
        stub = inference_pb2_grpc.InferenceStub(channel)
        for cancelled, following in zip(known.asked[::2], known.asked[1::2], strict=True):
            seen.append(await see(stub, cancelled))
            in_flight += await blocks_in_flight(cluster)
            seen.append(await see(stub, following))
        await nothing_is_left(cluster)
        assert await times_struck(cluster, next(iter(next(iter(faults.values())))))
        assert await counted(cluster, "diptych_kv_blocks_total", outcome="corrupt") == 0
    assert in_flight > TRIES // 2, "the blocks were not late"
    all_right(known, seen)


@pytest.mark.anchor
@pytest.mark.parametrize("way", ["near", "far"])
async def test_a_worker_that_wakes_up_does_not_write_into_the_pages_of_another(
    way: Literal["near", "far"], alone: Alone, tiny_model: Path, tmp_path: Path
) -> None:
    """It hangs while it copies out, is given up, and goes on copying when others have its request's pages."""
    known = pairs(alone, PAUSES)
    seen: list[Seen] = []
    paused = 0
    faults = {"prefill": {"kv.out": COPY_SECONDS}}
    async with (
        local_cluster(tmp_path, layout(tiny_model, replace(EXACT, prefill=2, way=way), faults)) as cluster,
        dial.channel(cluster.gateway.address) as channel,
    ):
        stub = inference_pb2_grpc.InferenceStub(channel)
        for left, following in zip(known.asked[::2], known.asked[1::2], strict=True):
            seen.append(await see(stub, left))
            writer = await writer_of_a_hand_over(cluster)
            if writer:
                cluster.processes[writer].pause()
            seen.append(await see(stub, following))
            if writer:
                cluster.processes[writer].resume()
                paused += 1
        await nothing_is_left(cluster)
    assert paused > PAUSES // 2, "nobody was copying"
    all_right(known, seen)


async def blocks_in_flight(cluster: LocalCluster) -> bool:
    """Whether anybody copies, just after the client left."""
    return any(" publication " in row or " fetch " in row or "leaving" in row for row in await audit(cluster))


async def writer_of_a_hand_over(cluster: LocalCluster) -> str:
    """The prefill worker that copies blocks out; empty if none does."""
    return next((row.partition(":")[0] for row in await audit(cluster) if " publication " in row), "")


def test_a_pool_holds_one_request_and_no_more() -> None:
    assert BLOCKS * 16 >= PROMPT + TOKENS > (BLOCKS - 1) * 16
    assert LONGEST_COPY < SESSION_SECONDS
