"""The trace collector over real gRPC, fed by the real OTLP exporter."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from services.cli.collector import Collector, collecting
from services.cli.trace_store import Limits
from services.core.errors import DeadlinePassed, NotFound, Unauthenticated
from services.pb import traces_pb2, traces_pb2_grpc
from services.runtime import dial
from services.runtime.edge import remote_errors
from services.runtime.telemetry import AttributeValue, Telemetry, otlp_exporter, trace_id, traceparent

TOKEN = "cluster-token"
CALLER = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"


@asynccontextmanager
async def service(name: str, collector: Collector) -> AsyncIterator[Telemetry]:
    """Telemetry of a service that exports to the collector as services do."""
    telemetry = Telemetry({"service.name": name}, [otlp_exporter(collector.address)])
    try:
        yield telemetry
    finally:
        await asyncio.to_thread(telemetry.shutdown)


async def asked(collector: Collector, name: str, wait: float = 0.0, token: str = TOKEN) -> traces_pb2.Trace:
    async with dial.channel(collector.address) as channel:
        stub = traces_pb2_grpc.TracesStub(channel)
        with remote_errors():
            request = traces_pb2.GetTraceRequest(id=name, wait_seconds=wait)
            return await stub.GetTrace(request, metadata=dial.call_metadata(token), timeout=20)


async def test_spans_of_two_services_become_one_complete_trace() -> None:
    async with collecting(TOKEN) as collector, service("gateway", collector) as gateway:
        async with service("decode", collector) as decode:
            attributes: dict[str, AttributeValue] = {
                "diptych.request_id": "r-1",
                "n": 3,
                "ratio": 0.5,
                "is_split": True,
                "ids": ["a", "b"],
            }
            root = gateway.start("gateway.request", CALLER, attributes=attributes)
            with decode.phase("decode.run", traceparent(root)) as run:
                pass
            with pytest.raises(ValueError), decode.phase("kv.get", traceparent(run)):
                raise ValueError
            gateway.end(root)
            for name in ("ab" * 16, "r-1", ""):
                trace = await asked(collector, name, wait=10)
                assert trace.is_complete and trace.trace_id == "ab" * 16
        spans = {span.name: span for span in trace.spans}
        assert {name: span.service for name, span in spans.items()} == {
            "gateway.request": "gateway",
            "decode.run": "decode",
            "kv.get": "decode",
        }
        assert spans["gateway.request"].parent_id == "cd" * 8
        assert spans["kv.get"].parent_id == spans["decode.run"].span_id
        assert spans["kv.get"].is_error and not spans["decode.run"].is_error
        shown = spans["gateway.request"].attributes
        assert (shown["n"], shown["ratio"], shown["is_split"], shown["ids"]) == ("3", "0.5", "true", "a, b")
        assert min(span.start_seconds for span in trace.spans) == 0.0


async def test_a_wait_ends_when_the_missing_parent_has_ended() -> None:
    async with collecting(TOKEN) as collector, service("gateway", collector) as gateway:
        root = gateway.start("gateway.request")
        with gateway.phase("gateway.tokenize", traceparent(root)):
            pass
        waiting = asyncio.create_task(asked(collector, trace_id(root), wait=15))
        early = await asked(collector, trace_id(root), wait=1)
        assert not early.is_complete and [span.name for span in early.spans] == ["gateway.tokenize"]
        assert not waiting.done()
        gateway.end(root)
        assert (await waiting).is_complete


async def test_asking_without_waiting_answers_at_once() -> None:
    async with collecting(TOKEN) as collector, service("gateway", collector) as gateway:
        begun = time.monotonic()
        for wait in (0.0, -1.0, math.nan, math.inf):
            with pytest.raises(NotFound):
                await asked(collector, "", wait)
        assert time.monotonic() - begun < 5
        root = gateway.start("gateway.request")
        with gateway.phase("gateway.tokenize", traceparent(root)):
            pass
        assert (await asked(collector, trace_id(root), wait=1)).spans
        assert not (await asked(collector, trace_id(root))).is_complete
        gateway.end(root)


async def test_asking_needs_the_token_and_exporting_does_not() -> None:
    async with collecting(TOKEN) as collector:
        with pytest.raises(Unauthenticated):
            await asked(collector, "", token="another")
        async with service("gateway", collector) as gateway:
            gateway.end(gateway.start("gateway.request"))
        assert (await asked(collector, "", wait=5)).is_complete


async def test_a_caller_that_leaves_while_waiting_does_no_harm() -> None:
    async with collecting(TOKEN) as collector, dial.channel(collector.address) as channel:
        stub = traces_pb2_grpc.TracesStub(channel)
        with pytest.raises(DeadlinePassed), remote_errors():
            request = traces_pb2.GetTraceRequest(id="none", wait_seconds=30)
            await stub.GetTrace(request, metadata=dial.call_metadata(TOKEN), timeout=0.2)
        with pytest.raises(NotFound):
            await asked(collector, "none")


async def test_more_spans_than_are_kept_are_refused_and_the_rest_is_served() -> None:
    async with collecting(TOKEN, limits=Limits(spans_per_trace=20)) as collector:
        async with service("gateway", collector) as gateway:
            root = gateway.start("gateway.request")
            for _ in range(50):
                with gateway.phase("gateway.tokenize", traceparent(root)):
                    pass
            gateway.end(root)
        trace = await asked(collector, trace_id(root))
        assert len(trace.spans) == 20 and not trace.is_complete
