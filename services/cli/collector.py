"""The local cluster's trace collector: an OTLP/gRPC receiver with a memory, asked through `diptych.internal.Traces`.

Exporters need no token, as OTLP has none of ours; asking does.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from services.cli.bell import Bell
from services.cli.otlp import spans_of
from services.cli.trace_store import KeptSpan, Limits, TraceStore
from services.core.errors import NotFound
from services.pb import traces_pb2, traces_pb2_grpc
from services.runtime import dial
from services.runtime.edge import Edge

OTLP_SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"
QUIET_SECONDS = 0.3
"""A whole trace counts as complete after this long without another span: longer than services hold spans back."""
MAX_WAIT_SECONDS = 60.0


class Collector(traces_pb2_grpc.TracesServicer):
    """Takes spans and gives traces."""

    def __init__(self, limits: Limits) -> None:
        self._store = TraceStore(limits)
        self._bell = Bell()
        self.address = ""

    async def Export(self, request: ExportTraceServiceRequest, context: object) -> ExportTraceServiceResponse:
        read = list(spans_of(request))
        kept = [span for span in read if span is not None]
        refused = len(read) - len(kept) + self._store.add(kept, time.monotonic())
        self._bell.ring()
        response = ExportTraceServiceResponse()
        if refused:
            response.partial_success.rejected_spans = refused
            response.partial_success.error_message = "spans without valid ids, or more than is kept of one trace"
        return response

    async def GetTrace(self, request: traces_pb2.GetTraceRequest, context: object) -> traces_pb2.Trace:
        return await self.trace(request.id, request.wait_seconds)

    async def trace(self, name: str, wait_seconds: float) -> traces_pb2.Trace:
        """The trace of a trace id, a request id, or "" for the latest finished request.

        Waits up to `wait_seconds` for it to be complete, and gives what there is after that. Raises NotFound.
        """
        wait = min(max(wait_seconds, 0.0), MAX_WAIT_SECONDS) if math.isfinite(wait_seconds) else 0.0
        is_complete = await self._settled(name, time.monotonic() + wait)
        trace_id = self._store.find(name)
        if trace_id is None:
            raise NotFound("no such trace is kept here", field="id")
        return _to_pb(trace_id, self._store.spans(trace_id), is_complete)

    async def _settled(self, name: str, deadline: float) -> bool:
        """True once the trace is whole and has been quiet for a while; False at the deadline."""
        while await self._bell.until(lambda: self._is_whole(name), deadline - time.monotonic()):
            if await self._is_quiet(name, deadline):
                return True
            if time.monotonic() >= deadline:
                return False
        return False

    async def _is_quiet(self, name: str, deadline: float) -> bool:
        """True if no span comes until the trace has been quiet for long enough, or the deadline."""
        since = self._changed_at(name)
        quiet_at = since + QUIET_SECONDS
        pause = min(quiet_at, deadline) - time.monotonic()
        has_grown = await self._bell.until(lambda: self._changed_at(name) != since, pause)
        return not has_grown and time.monotonic() >= quiet_at

    def _is_whole(self, name: str) -> bool:
        trace_id = self._store.find(name)
        return trace_id is not None and self._store.is_whole(trace_id)

    def _changed_at(self, name: str) -> float:
        trace_id = self._store.find(name)
        return self._store.changed_at(trace_id) if trace_id else -math.inf


@asynccontextmanager
async def collecting(token: str, listen: str = "127.0.0.1:0", limits: Limits | None = None) -> AsyncIterator[Collector]:
    """A running collector for the length of the block; `address` is what exporters and askers dial."""
    collector = Collector(limits or Limits())
    server = grpc.aio.server(interceptors=[_Doors(token)], options=list(dial.SERVER_OPTIONS))
    export = grpc.unary_unary_rpc_method_handler(
        collector.Export,
        request_deserializer=ExportTraceServiceRequest.FromString,
        response_serializer=ExportTraceServiceResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(OTLP_SERVICE, {"Export": export}),))
    traces_pb2_grpc.add_TracesServicer_to_server(collector, server)
    port = server.add_insecure_port(listen)
    collector.address = f"{listen.rpartition(':')[0]}:{port}"
    await server.start()
    try:
        yield collector
    finally:
        await server.stop(grace=0.2)


class _Doors(grpc.aio.ServerInterceptor):
    """One edge for exporters, which show no token, and one for everybody else."""

    def __init__(self, token: str) -> None:
        self._open = Edge("")
        self._guarded = Edge(token)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        is_export = str(handler_call_details.method).startswith(f"/{OTLP_SERVICE}/")
        edge = self._open if is_export else self._guarded
        return await edge.intercept_service(continuation, handler_call_details)


def _to_pb(trace_id: str, spans: list[KeptSpan], is_complete: bool) -> traces_pb2.Trace:
    start = min((span.start_ns for span in spans), default=0)
    rows = [
        traces_pb2.Span(
            name=span.name,
            service=span.service,
            span_id=span.span_id,
            parent_id=span.parent_id,
            start_seconds=(span.start_ns - start) / 1e9,
            seconds=(span.end_ns - span.start_ns) / 1e9,
            attributes=span.attributes,
            is_error=span.is_error,
        )
        for span in spans
    ]
    return traces_pb2.Trace(trace_id=trace_id, spans=rows, is_complete=is_complete)
