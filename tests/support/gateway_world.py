"""A real gateway, wired by its own `main`, before scripted schedulers, in the test's event loop."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services.core.ledger import Segment
from services.gateway.__main__ import main
from services.gateway.settings import Settings
from services.modelfiles.prepare import prepare
from services.pb import inference_pb2_grpc, operations_pb2, operations_pb2_grpc
from services.runtime.process import Process
from services.runtime.server import READY
from tests.support.processes import process_of
from tests.support.scripted_scheduler import Script, ScriptedScheduler, Started, scripted_scheduler
from tests.support.tiny_model import tiny_tokenizer, write_tiny_hf_model


@dataclass
class GatewayWorld:
    """The gateway's two addresses, its spans, and the schedulers behind it."""

    process: Process[Settings]
    spans: InMemorySpanExporter
    channel: grpc.aio.Channel
    http: str
    schedulers: list[ScriptedScheduler]

    @property
    def scheduler(self) -> ScriptedScheduler:
        return self.schedulers[0]

    @property
    def inference(self) -> "inference_pb2_grpc.InferenceAsyncStub":
        return inference_pb2_grpc.InferenceStub(self.channel)

    async def listening(self) -> None:
        """Returns once the gateway's server answers, ready or not."""
        stub = operations_pb2_grpc.OperationsStub(self.channel)
        await stub.Status(operations_pb2.StatusRequest(), wait_for_ready=True)

    async def connected(self) -> None:
        """Returns once the gateway has a session with every scheduler."""
        async with asyncio.timeout(5):
            while not all(scheduler.is_connected for scheduler in self.schedulers):
                await asyncio.sleep(0)

    async def started(self) -> Started:
        """The next request that any of the schedulers gets."""
        waits = [asyncio.create_task(scheduler.started.get()) for scheduler in self.schedulers]
        done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED, timeout=5)
        for wait in pending:
            wait.cancel()
        assert done, "no scheduler was asked"
        return done.pop().result()

    async def held(self) -> list[str]:
        """What the gateway holds for requests, and open spans."""
        stub = operations_pb2_grpc.OperationsStub(self.channel)
        report = await stub.Audit(operations_pb2.AuditRequest())
        return [f"{one.kind} {one.state}" for one in report.holdings if one.request_id or one.kind == "span"]

    async def nothing_held(self) -> None:
        """Returns once the gateway holds nothing for any request."""
        async with asyncio.timeout(2):
            while await self.held():
                await asyncio.sleep(0)


@asynccontextmanager
async def gateway_world(
    model: Path, *, schedulers: int = 1, wired: tuple[str, ...] = (), **settings: object
) -> AsyncIterator[GatewayWorld]:
    """Ready to be asked, if it has `schedulers`; `wired` are addresses of others. Leaving it drains the gateway as
    SIGTERM does."""
    async with AsyncExitStack() as stack:
        behind = [await stack.enter_async_context(scripted_scheduler(f"scheduler-{at}")) for at in range(schedulers)]
        grpc_port, http_port = free_port(), free_port()
        chosen = {
            "listen": f"127.0.0.1:{grpc_port}",
            "http_listen": f"127.0.0.1:{http_port}",
            "model": model,
            "schedulers": (*(scheduler.address for scheduler in behind), *wired),
            "metrics_port": None,
            "profile": "test",
            "drain_seconds": 2.0,
        }
        process, spans = await stack.enter_async_context(process_of("gateway", Settings(**{**chosen, **settings})))
        running = asyncio.create_task(main(process), name="gateway")
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
                if behind:
                    await until_ready(channel, running)
                yield GatewayWorld(process, spans, channel, f"http://127.0.0.1:{http_port}", behind)
        finally:
            process.stopping.set()
            await running


async def until_ready(channel: grpc.aio.Channel, running: "asyncio.Task[None]") -> None:
    """Returns when the gateway says that it takes requests; raises what it died of."""
    stub = health_pb2_grpc.HealthStub(channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=READY), wait_for_ready=True)

    async def serving() -> None:
        async for answer in watch:
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                return

    waiting = asyncio.create_task(serving(), name="until-ready")
    await asyncio.wait((waiting, running), return_when=asyncio.FIRST_COMPLETED)
    watch.cancel()
    if running.done():
        await running
    await asyncio.gather(waiting, return_exceptions=True)


END = 2
"""The tiny model's end of turn."""


def tiny_prepared(directory: Path, context: int) -> Path:
    """A prepared tiny model whose tokens are `ids_of`."""
    source = write_tiny_hf_model(directory / "tiny", layers=1, hidden=16, heads=2, context=context)
    return prepare(source, directory / "cache")


def ids_of(text: str) -> list[int]:
    return list(tiny_tokenizer(320).encode(text, add_special_tokens=False).ids)


def answering(text: str, *, tail: tuple[int, ...] = (END,)) -> Script:
    """Answers with `text` at once, one token an event."""

    def script(started: Started) -> None:
        for token in [*ids_of(text), *tail]:
            started.emit([token])
        started.finish(segments=[Segment("decode.run", 0.001)])

    return script


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
