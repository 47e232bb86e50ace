"""A process is killed or hangs during traffic: requests are answered by others, by recomputing or by going on."""

import asyncio
from pathlib import Path

import pytest

from services.cli.cluster import LocalCluster
from tests.faults.clusters import layout
from tests.faults.conftest import Known
from tests.faults.proof import all_right, nothing_is_left
from tests.faults.traffic import traffic_beside
from tests.support.local_cluster import local_cluster

VICTIMS = ("kvstore-0", "prefill-0", "decode-0")
STRUCK_AT, BACK_AT = 60, 120
"""Clients that are done by then, of 200."""


@pytest.mark.anchor
@pytest.mark.parametrize("victim", VICTIMS)
async def test_a_killed_process_costs_no_answer(victim: str, known: Known, tiny_model: Path, tmp_path: Path) -> None:
    async with local_cluster(tmp_path, layout(tiny_model)) as cluster:
        async with traffic_beside(cluster, known.asked) as traffic:
            await traffic.until(STRUCK_AT)
            cluster.processes[victim].kill()
            await traffic.until(BACK_AT)
            await cluster.restart(victim)
        await nothing_is_left(cluster)
    all_right(known, traffic.in_order())


@pytest.mark.anchor
@pytest.mark.parametrize("victim", VICTIMS)
async def test_a_process_that_hangs_and_comes_back_costs_no_answer(
    victim: str, known: Known, tiny_model: Path, tmp_path: Path
) -> None:
    """It is given up after its silence; what it still does when it wakes up is for nobody."""
    async with local_cluster(tmp_path, layout(tiny_model)) as cluster:
        async with traffic_beside(cluster, known.asked) as traffic:
            await traffic.until(STRUCK_AT)
            cluster.processes[victim].pause()
            await until_missed(cluster, victim, by="scheduler-0")
            cluster.processes[victim].resume()
        await nothing_is_left(cluster)
    all_right(known, traffic.in_order())


@pytest.mark.anchor
@pytest.mark.parametrize("deed", ["kill", "pause"])
async def test_without_its_only_scheduler_the_gateway_waits_and_goes_on_when_it_is_back(
    deed: str, known: Known, tiny_model: Path, tmp_path: Path
) -> None:
    async with local_cluster(tmp_path, layout(tiny_model)) as cluster:
        scheduler = cluster.processes["scheduler-0"]
        async with traffic_beside(cluster, known.asked) as traffic:
            await traffic.until(STRUCK_AT)
            scheduler.kill() if deed == "kill" else scheduler.pause()
            await until_missed(cluster, "scheduler-0", by="gateway-0")
            if deed == "kill":
                await cluster.restart("scheduler-0")
            else:
                scheduler.resume()
        await nothing_is_left(cluster)
    all_right(known, traffic.in_order())


async def until_missed(cluster: LocalCluster, victim: str, by: str) -> None:
    """Returns once a process says that it can work with `victim` no more."""
    async with asyncio.timeout(20):
        while victim in cluster.announcement(by).peers:
            await asyncio.sleep(0.02)
