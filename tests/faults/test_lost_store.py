"""kill -9 of the only kvstore during traffic: every answer is right, nobody waits long, no shared memory is left."""

from pathlib import Path

import pytest

from tests.faults.clusters import Shape, layout
from tests.faults.conftest import Known
from tests.faults.proof import all_right, nothing_is_left
from tests.faults.traffic import Seen, Traffic, traffic_beside
from tests.support.local_cluster import local_cluster
from tests.support.shared_memory import left_behind

HANG_SECONDS = 2.0
"""Longer than this no client hears nothing because of a store."""


@pytest.mark.anchor
@pytest.mark.parametrize("is_back", [False, True], ids=["gone for good", "back at once"])
async def test_a_killed_store_costs_no_answer_no_hang_and_no_shared_memory(
    is_back: bool, known: Known, tiny_model: Path, tmp_path: Path
) -> None:
    before = left_behind()
    async with local_cluster(tmp_path, layout(tiny_model, Shape(kvstore=1))) as cluster:
        usual = await Traffic(known.asked[:100]).run(cluster.gateway.address, at_once=4)
        later = known.part(100, 200)
        async with traffic_beside(cluster, later.asked, at_once=4) as traffic:
            await traffic.until(30)
            await cluster.processes["kvstore-0"].kill_and_wait()
            if is_back:
                await cluster.restart("kvstore-0")
        seen = traffic.in_order()
        await nothing_is_left(cluster)
        if not is_back:
            assert left_behind() <= before, "shared memory of a dead store is left"
    assert left_behind() <= before
    all_right(known, [*usual, *seen])
    print(f"longest silence: {longest(usual):.2f} s with the store, {longest(seen):.2f} s when it was killed")
    assert longest(seen) < HANG_SECONDS


def longest(seen: list[Seen]) -> float:
    return max(one.longest_silence for one in seen)
