"""A decode worker, a prefill worker and one of two schedulers are killed, one after the other, in the middle of
streams: all of them go on, token for token, and nobody waits long."""

import asyncio
from pathlib import Path

import pytest

from services.cli.cluster import LocalCluster
from tests.faults.clusters import Shape, layout
from tests.faults.conftest import Known
from tests.faults.proof import all_right, nothing_is_left
from tests.faults.traffic import traffic_beside
from tests.support.local_cluster import local_cluster

STREAMS = 20
LONGEST_GAP = 3.0
"""Seconds in which a client hears nothing; a session is given up after 1.5 s."""
VICTIMS = ("decode-0", "prefill-0", "scheduler-0")
PLENTY = Shape(scheduler=2, worker_blocks=2048, store_blocks=2048, max_running=32)


@pytest.mark.anchor
async def test_streams_outlive_a_decode_worker_a_prefill_worker_and_a_scheduler(
    known: Known, tiny_model: Path, tmp_path: Path
) -> None:
    async with local_cluster(tmp_path, layout(tiny_model, PLENTY)) as cluster:
        async with traffic_beside(cluster, known.asked, STREAMS) as traffic:
            for done, victim in zip((30, 80, 130), VICTIMS, strict=True):
                await traffic.until(done)
                cluster.processes[victim].kill()
        await _without(cluster, VICTIMS)
        await nothing_is_left(cluster)
    seen = traffic.in_order()
    all_right(known, seen)
    gap = max(one.longest_silence for one in seen)
    print(f"longest gap {gap:.2f} s")
    assert gap < LONGEST_GAP


async def _without(cluster: LocalCluster, victims: tuple[str, ...]) -> None:
    """Returns once the gateway works with no scheduler that was killed."""
    async with asyncio.timeout(20):
        while set(victims) & set(cluster.announcement("gateway-0").peers):
            await asyncio.sleep(0.02)
