"""Spans. Every span gets its parent explicitly, as a W3C traceparent; the ambient context is never used, so nothing
depends on which task happens to run. Started spans are counted against ended ones, and `Audit` shows the difference.
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

AttributeValue = str | bool | int | float | Sequence[str]

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
EXPORT_DELAY_MS = 200
EXPORT_TIMEOUT_SECONDS = 2


def parsed(traceparent: str) -> SpanContext | None:
    """The span a traceparent names; None if it is absent, malformed or all zero."""
    match = _TRACEPARENT.fullmatch(traceparent.strip().lower())
    if match is None:
        return None
    context = SpanContext(
        int(match[1], 16), int(match[2], 16), is_remote=True, trace_flags=TraceFlags(int(match[3], 16))
    )
    return context if context.is_valid else None


def traceparent(span: Span) -> str:
    """What to pass on to a callee, so that its spans become children of `span`."""
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags) & 1:02x}"


def trace_id(span: Span) -> str:
    """32 hexadecimal digits."""
    return f"{span.get_span_context().trace_id:032x}"


class Telemetry:
    """Makes all spans of one process. Export runs in threads of its own and never blocks a request."""

    def __init__(self, resource: Mapping[str, str], exporters: Sequence[SpanExporter]) -> None:
        self._provider = TracerProvider(
            resource=Resource.create(dict(resource)), id_generator=RandomIdGenerator(), shutdown_on_exit=False
        )
        for exporter in exporters:
            self._provider.add_span_processor(
                BatchSpanProcessor(exporter, schedule_delay_millis=EXPORT_DELAY_MS, max_queue_size=8192)
            )
        self._tracer = self._provider.get_tracer("diptych")
        self._open: dict[int, tuple[str, float]] = {}

    def add_processor(self, processor: SpanProcessor) -> None:
        """Shows every span to `processor` too; tests collect them this way."""
        self._provider.add_span_processor(processor)

    def start(
        self,
        name: str,
        parent: str = "",
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Mapping[str, AttributeValue] | None = None,
    ) -> Span:
        """Begins a span that its owner ends with `end`, on every exit. An empty or malformed parent begins a trace."""
        context = parsed(parent)
        ambient = trace.set_span_in_context(NonRecordingSpan(context)) if context else Context()
        span = self._tracer.start_span(name, ambient, kind=kind, attributes=attributes)
        self._open[span.get_span_context().span_id] = (name, time.monotonic())
        return span

    def end(self, span: Span, error: BaseException | None = None) -> None:
        """Ends `span`; ending one that has ended does nothing."""
        if self._open.pop(span.get_span_context().span_id, None) is None:
            return
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, type(error).__name__))
            span.set_attribute("error.type", type(error).__name__)
        span.end()

    @contextmanager
    def phase(self, name: str, parent: str = "", **attributes: AttributeValue) -> Iterator[Span]:
        """A span around a block of code; a failure or a cancellation inside is recorded and goes on."""
        span = self.start(name, parent, attributes={f"diptych.{key}": value for key, value in attributes.items()})
        try:
            yield span
        except BaseException as error:
            self.end(span, error)
            raise
        self.end(span)

    def open_spans(self) -> list[tuple[str, float]]:
        """(name, monotonic start) of every span that has started and not ended."""
        return list(self._open.values())

    def shutdown(self) -> None:
        """Exports what is left; gives up after a few seconds."""
        self._provider.force_flush(EXPORT_TIMEOUT_SECONDS * 1000)
        self._provider.shutdown()


def otlp_exporter(endpoint: str) -> SpanExporter:
    """OTLP over gRPC to `endpoint`: `host:port` or a URL; https:// switches TLS on."""
    return OTLPSpanExporter(
        endpoint=endpoint, insecure=not endpoint.startswith("https://"), timeout=EXPORT_TIMEOUT_SECONDS
    )
