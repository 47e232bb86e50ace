"""nats-server stops during traffic and comes back empty: streams and new requests go on, all announce themselves."""

import asyncio
import json
from pathlib import Path

import pytest

from services.cli.cluster import LocalCluster
from services.cli.layout import ClusterLayout
from services.pb import inference_pb2_grpc, operations_pb2, operations_pb2_grpc
from services.runtime import dial
from services.runtime.bus import Bus
from services.runtime.directory import SILENT_SECONDS, Directory
from tests.support.asking import ask, request_for, until_calm
from tests.support.local_cluster import local_cluster, prepared_tiny_model

SERVICES = ("gateway", "scheduler", "prefill", "decode", "kvstore")
LONG_OUTAGE = 60.0
STEP_SECONDS = 0.025
"""Planted in decode steps: how long answers take must not depend on how fast the machine is."""
LONG, SHORT = 700, 200
"""Tokens: an answer that outlasts the short outage, and one that outlasts several announcements."""


@pytest.mark.parametrize(
    "seconds", [2.5 * SILENT_SECONDS, pytest.param(LONG_OUTAGE, marks=[pytest.mark.drill, pytest.mark.timeout(300)])]
)
async def test_traffic_goes_on_while_the_bus_is_away(tmp_path: Path, seconds: float) -> None:
    slow = {"profile": "test", "faults": json.dumps({"decode.step": STEP_SECONDS}), "max_running": "8"}
    layout = ClusterLayout(model=prepared_tiny_model(tmp_path), prefill=2, decode=2, fields={"decode": slow})
    answers = 0
    async with local_cluster(tmp_path / "run", layout) as cluster, dial.channel(cluster.gateway.address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        stream = aiter(stub.Generate(request_for([40] * 40, LONG)))
        await anext(stream)
        # The last word on the bus is that the decode workers are full; it must not stand for the whole outage.
        crowd = [asyncio.create_task(ask(stub, request_for([50 + n] * 40, SHORT))) for n in range(14)]
        await until_busy(cluster)
        await cluster.stop_nats()
        assert all(len(told.ids) == SHORT for told in await asyncio.gather(*crowd))
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            told = await ask(stub, request_for([answers % 200 + 3] * 70, 16))
            assert len(told.ids) == 16
            answers += 1
        await cluster.start_nats()
        heard = await announced(cluster.nats.url)
        assert heard == {child.spec.name for child in cluster.processes.values()}
        tokens = 1
        async for message in stream:
            tokens += len(message.token_ids)
        assert tokens >= LONG
        assert (await ask(stub, request_for([9] * 70, 4))).done.usage.completion_tokens == 4
        assert await peers(cluster.announcement("scheduler-0").address, cluster.token) == {
            "decode-0",
            "decode-1",
            "prefill-0",
            "prefill-1",
            "kvstore-0",
        }
        await until_calm(cluster)
    assert answers > 10


async def until_busy(cluster: LocalCluster) -> None:
    async with asyncio.timeout(20):
        while cluster.announcement("decode-0").load.running + cluster.announcement("decode-1").load.running < 15:
            await asyncio.sleep(0.02)


async def announced(url: str) -> set[str]:
    """Who says that it is there, on a bus that came back empty."""
    names: set[str] = set()
    everybody = asyncio.Event()

    def hear(announcement: operations_pb2.Announcement, _: str) -> None:
        names.add(announcement.name)
        if len(names) == 7:
            everybody.set()

    bus = Bus(url, "test")
    Directory(bus, SERVICES, hear)
    async with bus, asyncio.timeout(15):
        await everybody.wait()
    return names


async def peers(address: str, token: str) -> set[str]:
    async with dial.channel(address) as channel:
        stub = operations_pb2_grpc.OperationsStub(channel)
        status = await stub.Status(operations_pb2.StatusRequest(), metadata=dial.call_metadata(token))
    return set(status.peers)
