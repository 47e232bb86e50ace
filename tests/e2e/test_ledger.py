"""Delays planted at every hop appear in that hop's segment and nowhere else.

Each seam gets a delay of its own, all at least 200 ms and 40 ms apart, so that time in a wrong segment cannot pass for
the right one.
"""

import json
from pathlib import Path

import pytest

from services.cli.cluster import LocalCluster
from services.cli.layout import ClusterLayout
from services.pb import inference_pb2_grpc
from services.runtime import dial
from tests.support.asking import ask, request_for
from tests.support.local_cluster import local_cluster, prepared_tiny_model

TOLERANCE = 0.020
ROUNDS = 9

SEAMS = {
    "gateway.tokenize": ("gateway", "gateway.tokenize"),
    "gateway.start": ("gateway", "hop.gateway_scheduler"),
    "gateway.stream": ("gateway", "gateway.stream"),
    "scheduler.queue": ("scheduler", "scheduler.queue"),
    "scheduler.start": ("scheduler", "hop.scheduler_prefill"),
    "scheduler.first_token": ("scheduler", "hop.scheduler_decode"),
    "prefill.step": ("prefill", "prefill.compute"),
    "kv.put": ("prefill", "kv.put"),
    "kv.get": ("decode", "kv.get"),
    "decode.step": ("decode", "decode.run"),
}
"""Seam to the service it is planted in and the segment it must appear in."""
DELAYS = {seam: 0.2 + 0.04 * place for place, seam in enumerate(SEAMS)}
TOGETHER = (
    {seam: delay for seam, delay in DELAYS.items() if seam != "scheduler.first_token"},
    {"scheduler.first_token": DELAYS["scheduler.first_token"]},
)
"""The put and the first token's way to decode run side by side, so a delay in one would hide a delay in the other."""


def layout(model: Path, delays: dict[str, float]) -> ClusterLayout:
    fields: dict[str, dict[str, str]] = {}
    for service in ("gateway", "scheduler", "prefill", "decode"):
        planted = {seam: delay for seam, delay in delays.items() if SEAMS[seam][0] == service}
        fields[service] = {"profile": "test", "faults": json.dumps(planted)}
    return ClusterLayout(model=model, fields=fields)


async def segments(cluster: LocalCluster) -> dict[str, float]:
    """The shortest of several requests, each of one chunk and one decode step: a busy machine only lengthens them."""
    rounds = []
    async with dial.channel(cluster.gateway.address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        for number in range(ROUNDS):
            # Other first tokens each time, so that no block is cached anywhere.
            told = await ask(stub, request_for([3 + number, *range(10, 50)], max_tokens=2))
            rounds.append({segment.name: segment.seconds for segment in told.done.ledger})
    names = {name for each in rounds for name in each}
    return {name: min(each.get(name, 0.0) for each in rounds) for name in names}


@pytest.mark.drill
@pytest.mark.timeout(240)
async def test_a_planted_delay_appears_in_its_hops_segment_and_nowhere_else(tmp_path: Path) -> None:
    model = prepared_tiny_model(tmp_path)
    async with local_cluster(tmp_path / "plain", layout(model, {})) as cluster:
        plain = await segments(cluster)
    for number, delays in enumerate(TOGETHER):
        async with local_cluster(tmp_path / f"planted-{number}", layout(model, delays)) as cluster:
            planted = await segments(cluster)
        grown = {name: planted.get(name, 0.0) - plain.get(name, 0.0) for name in planted.keys() | plain.keys()}
        expected = {SEAMS[seam][1]: delay for seam, delay in delays.items()}
        wrong = {
            name: (round(growth, 4), expected.get(name, 0.0))
            for name, growth in grown.items()
            if abs(growth - expected.get(name, 0.0)) > TOLERANCE
        }
        assert not wrong, f"segment: (grew by, planted) {wrong}"
