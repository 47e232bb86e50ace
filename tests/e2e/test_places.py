"""Two stores beside real workers: which store a request goes through, and which one is said to have its beginning."""

import asyncio
from pathlib import Path

import pytest

from services.cli.cluster import LocalCluster
from services.cli.layout import ClusterLayout
from services.pb import inference_pb2, inference_pb2_grpc
from services.runtime import dial
from tests.support.asking import request_for
from tests.support.local_cluster import local_cluster, prepared_tiny_model

PROMPT = list(range(100, 200))
FULL_BLOCKS = 6


async def decided(cluster: LocalCluster) -> inference_pb2.Decision:
    """Asks, and says where it ran."""
    async with dial.channel(cluster.gateway.address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        messages = [message async for message in stub.Generate(request_for(PROMPT, 4), timeout=60)]
        record = await stub.GetRequest(inference_pb2.GetRequestRequest(request_id=messages[-1].done.request_id))
    assert record.outcome == "length"
    [decision] = record.decisions
    return decision


def weighed(decision: inference_pb2.Decision) -> None:
    """Every worker stands in the record in every role it may have, with what it would have cost."""
    found = {(each.role, each.worker) for each in decision.candidates}
    assert found == {("prefill", "prefill-0"), ("decode", "decode-0"), ("local", "decode-0")}
    assert (decision.policy, decision.others, decision.uncached_tokens) == ("ours", 0, len(PROMPT))
    assert decision.ttft_seconds > 0 < decision.itl_seconds
    for each in decision.candidates:
        assert each.cost_seconds == pytest.approx(sum(term.seconds for term in each.terms))


def holding(why: str) -> list[str]:
    """Stores that are said to have the whole prompt, in whatever order."""
    _, _, known = why.partition("; known ")
    return [
        name for name, _, blocks in (each.partition("=") for each in known.split(", ")) if blocks == str(FULL_BLOCKS)
    ]


async def test_blocks_go_through_a_near_store_and_are_found_again_while_one_store_lives(tmp_path: Path) -> None:
    layout = ClusterLayout(model=prepared_tiny_model(tmp_path), kvstore=2, drain_seconds=2.0)
    async with local_cluster(tmp_path / "cluster", layout) as cluster:
        names = {cluster.announcement(name).address: name for name in ("kvstore-0", "kvstore-1")}
        first = await decided(cluster)
        weighed(first)
        gone = names[first.kvstore]
        assert f"kvstore {gone} near prefill-0 and decode-0" in first.why
        async with asyncio.timeout(20):
            while gone not in holding((await decided(cluster)).why):
                pass
        [other] = set(names.values()) - {gone}
        cluster.processes[gone].kill()
        async with asyncio.timeout(20):
            # Its workers notice within half a second; then the other store serves, and has the blocks soon.
            while other not in holding((later := await decided(cluster)).why) or gone in later.why:
                pass
        assert (bool(later.prefill), names[later.kvstore]) == (True, other)
