"""OTLP messages to kept spans: what any OpenTelemetry exporter sends, read without the SDK."""

from collections.abc import Iterable, Iterator
from math import isfinite

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from services.cli.trace_store import KeptSpan

TRACE_ID_BYTES = 16
SPAN_ID_BYTES = 8


def spans_of(request: ExportTraceServiceRequest) -> Iterator[KeptSpan | None]:
    """Every span of an export in order; None for one whose ids are not valid."""
    for resource in request.resource_spans:
        service = texts(resource.resource.attributes).get("service.name", "unknown")
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield _kept(span, service) if _has_ids(span) else None


def texts(attributes: Iterable[KeyValue]) -> dict[str, str]:
    """Attribute values as people read them."""
    return {pair.key: _text(pair.value) for pair in attributes}


def _has_ids(span: Span) -> bool:
    return (
        len(span.trace_id) == TRACE_ID_BYTES
        and any(span.trace_id)
        and len(span.span_id) == SPAN_ID_BYTES
        and any(span.span_id)
    )


def _kept(span: Span, service: str) -> KeptSpan:
    return KeptSpan(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        name=span.name,
        service=service,
        start_ns=span.start_time_unix_nano,
        end_ns=max(span.end_time_unix_nano, span.start_time_unix_nano),
        size=span.ByteSize(),
        attributes=texts(span.attributes),
        is_error=span.status.code == Status.STATUS_CODE_ERROR,
    )


def _text(value: AnyValue) -> str:
    kind = value.WhichOneof("value")
    if kind == "bool_value":
        return "true" if value.bool_value else "false"
    if kind == "double_value":
        return f"{value.double_value:g}" if isfinite(value.double_value) else str(value.double_value)
    if kind == "bytes_value":
        return value.bytes_value.hex()
    if kind == "array_value":
        return ", ".join(_text(item) for item in value.array_value.values)
    if kind == "kvlist_value":
        return ", ".join(f"{pair.key}={_text(pair.value)}" for pair in value.kvlist_value.values)
    return str(getattr(value, kind)) if kind else ""
