"""Pools grow and shrink under traffic, by the way that `diptych scale` takes: no request fails, nothing is left."""

import asyncio
from pathlib import Path

import pytest

from services.cli.control import asked, controlled
from services.cli.errors import CommandError
from tests.faults.clusters import Shape, layout
from tests.faults.conftest import Known
from tests.faults.proof import all_right, nothing_is_left
from tests.faults.traffic import traffic_beside
from tests.support.local_cluster import local_cluster


@pytest.mark.matrix
async def test_the_cluster_is_scaled_up_and_down_under_traffic(known: Known, tiny_model: Path, tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []
    has_begun = asyncio.Event()

    def tell(name: str, state: str) -> None:
        told.append((name, state))
        has_begun.set()

    async with (
        local_cluster(tmp_path, layout(tiny_model, Shape(prefill=1, decode=1))) as cluster,
        controlled(cluster.token, cluster.scale) as address,
    ):
        before = set(cluster.processes)
        with pytest.raises(CommandError, match="token"):
            await asked(address, "wrong", {"decode": 2}, tell)
        async with traffic_beside(cluster, known.asked) as traffic:
            await traffic.until(10)
            first = asyncio.create_task(asked(address, cluster.token, {"prefill": 2, "decode": 2}, tell))
            await has_begun.wait()
            with pytest.raises(CommandError, match="already"):
                await asked(address, cluster.token, {"decode": 3}, tell)
            await first
            assert set(cluster.processes) == {*before, "prefill-1", "decode-1"}
            await asked(address, cluster.token, {"prefill": 1, "decode": 1}, tell)
        all_right(known, traffic.in_order())
        assert set(cluster.processes) == before
        await nothing_is_left(cluster)
        await cluster.stop_nats()
        with pytest.raises(CommandError, match="NATS"):
            await asked(address, cluster.token, {"decode": 2}, tell)
        assert set(cluster.processes) == before
    assert {("decode-1", "ready"), ("decode-1", "stopped"), ("prefill-1", "stopped")} <= set(told)
