"""Spans reach a collector that we did not write, by the standard variable and beside the local cluster's own memory."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path

from services.cli.cluster import LocalCluster
from services.cli.layout import ClusterLayout
from services.pb import inference_pb2_grpc
from services.runtime import dial
from tests.support.asking import ask, request_for
from tests.support.local_cluster import prepared_tiny_model
from tests.support.ports import free_port

NAMES = ("gateway.request", "scheduler.place", "prefill.compute", "kv.put", "kvstore.put", "kv.get", "decode.run")


@asynccontextmanager
async def rotel(log: Path) -> AsyncIterator[str]:
    """The Rotel collector, writing every span into `log`; yields its OTLP/gRPC endpoint."""
    grpc_port, http_port = free_port(), free_port()
    options = ["--exporter", "blackhole", "--debug-log", "traces", "--debug-log-verbosity", "detailed"]
    options += ["--otlp-grpc-endpoint", f"127.0.0.1:{grpc_port}", "--otlp-http-endpoint", f"127.0.0.1:{http_port}"]
    program = str(files("rotel").joinpath("rotel-agent"))
    with log.open("wb") as file:
        agent = await asyncio.create_subprocess_exec(program, "start", *options, stdout=file, stderr=file)
    try:
        yield f"http://127.0.0.1:{grpc_port}"
    finally:
        agent.kill()
        await agent.wait()


async def test_every_hops_span_reaches_a_standard_collector(tmp_path: Path) -> None:
    model = prepared_tiny_model(tmp_path)
    async with rotel(tmp_path / "rotel.log") as endpoint:
        environment = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
        async with LocalCluster(ClusterLayout(model=model), tmp_path, environment) as cluster:
            async with dial.channel(cluster.gateway.address) as channel:
                stub = inference_pb2_grpc.InferenceStub(channel)
                told = await ask(stub, request_for(list(range(5, 60)), 8))
            assert (await cluster.collector.trace(told.done.trace_id, 10)).is_complete
        # Leaving the cluster has flushed every process's spans.
        text = (tmp_path / "rotel.log").read_text(errors="replace")
    assert told.done.trace_id in text
    assert not [name for name in NAMES if name not in text]
