"""A process is told to stop under traffic, once or twice: no request fails, whatever its grace leaves unfinished."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.clusters import Shape, layout
from tests.faults.conftest import Known
from tests.faults.proof import all_right, nothing_is_left
from tests.faults.traffic import traffic_beside
from tests.support.local_cluster import local_cluster

TWO_SCHEDULERS = Shape(scheduler=2)
MIDST = ("decode-0", "scheduler-0")
"""They always have answers that last longer than they stay."""
GRACE = 0.2
"""Seconds; less than an answer takes."""


@pytest.mark.matrix
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("leaving", ["decode-0", "prefill-0", "scheduler-0", "kvstore-0"])
async def test_a_process_that_leaves_costs_no_answer(
    leaving: str, times: int, known: Known, tiny_model: Path, tmp_path: Path
) -> None:
    """Told twice, it does not wait for a grace period that is longer than the test."""
    shaped = layout(tiny_model, TWO_SCHEDULERS)
    fields = {name: dict(each) for name, each in shaped.fields.items()}
    fields[leaving] = {"drain_seconds": f"{GRACE if times == 1 else 600:g}"}
    async with local_cluster(tmp_path, replace(shaped, fields=fields)) as cluster:
        async with traffic_beside(cluster, known.asked) as traffic:
            await traffic.until(60)
            child = cluster.processes[leaving]
            child.terminate()
            async with asyncio.timeout(10):
                if times == 2:
                    # Two signals that wait at once are one.
                    while not cluster.announcement(leaving).is_draining:
                        await asyncio.sleep(0.01)
                    child.terminate()
                assert await child.wait() == 0
            if leaving in MIDST and times == 1:
                assert "still busy" in child.tail()
            await traffic.until(120)
            await cluster.restart(leaving)
        await nothing_is_left(cluster)
    all_right(known, traffic.in_order())
