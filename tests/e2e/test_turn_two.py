"""Turn two of a chat finds all of turn one, whoever computes it, and its answer is that of a cold one."""

import asyncio
from pathlib import Path

from services.cli.cluster import LocalCluster
from services.cli.layout import ClusterLayout
from services.modelfiles.prepared import PreparedModel
from services.pb import inference_pb2, inference_pb2_grpc, operations_pb2
from services.runtime import dial
from tests.e2e.conftest import LIGHT
from tests.support.asking import Told, ask, request_for, told_by_all, until_calm
from tests.support.local_cluster import local_cluster

TURN_ONE = [100 + n * 7919 % 20_000 for n in range(300)]
ANSWER = 12
BLOCK = 16
FOUND = (len(TURN_ONE) + ANSWER - 1) // BLOCK * BLOCK
"""The answer's last token is drawn and never computed."""


def turn_two(one: Told, salt: str = "") -> inference_pb2.GenerateRequest:
    request = request_for([*TURN_ONE, *one.ids, *([500] * 20)], 6)
    request.cache_salt = salt
    return request


async def until_kept(cluster: LocalCluster, blocks: int) -> None:
    """The store has these blocks; there is no event for what a foreign process has."""
    async with asyncio.timeout(10):
        while await cached_blocks(cluster) < blocks:
            await asyncio.sleep(0.05)


async def cached_blocks(cluster: LocalCluster) -> int:
    metadata = dial.call_metadata(cluster.token)
    said = await told_by_all(
        cluster, lambda operations: operations.Status(operations_pb2.StatusRequest(), metadata=metadata, timeout=5)
    )
    return said["kvstore-0"].load.blocks_cached


async def test_turn_two_is_found_by_every_prefill_worker(smollm2: PreparedModel, tmp_path: Path) -> None:
    layout = ClusterLayout(model=smollm2.directory, prefill=2, pythons=LIGHT, drain_seconds=2.0)
    async with (
        local_cluster(tmp_path / "cluster", layout) as cluster,
        dial.channel(cluster.gateway.address) as channel,
    ):
        stub = inference_pb2_grpc.InferenceStub(channel)
        one = await ask(stub, request_for(TURN_ONE, ANSWER))
        assert one.done.usage.cached_tokens == 0
        await until_kept(cluster, FOUND // BLOCK)
        cold = await ask(stub, turn_two(one, salt="another"))
        assert cold.done.usage.cached_tokens == 0, "two salts share a block"
        again = await ask(stub, turn_two(one))
        assert again.done.usage.cached_tokens == FOUND
        assert again.ids == cold.ids
        record = await stub.GetRequest(inference_pb2.GetRequestRequest(request_id=again.done.request_id))
        names = {cluster.announcement(name).address: name for name in ("prefill-0", "prefill-1")}
        cluster.processes[names[record.decisions[0].prefill]].kill()
        elsewhere = await ask(stub, turn_two(one))
        # And what the first turn two computed beyond, if the scheduler has heard of it by then.
        assert elsewhere.done.usage.cached_tokens >= FOUND
        assert elsewhere.ids == cold.ids
        assert "prefill.fetch" in {segment.name for segment in elsewhere.done.ledger}
        await until_calm(cluster)
