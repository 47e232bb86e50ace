"""Recent traces in bounded memory. Knows spans, not where they come from.

A trace is whole when its `gateway.request` span has ended and every span's parent is there; the parent of
`gateway.request` itself may be the caller's own span, which is kept elsewhere.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

ROOT = "gateway.request"
REQUEST_ID = "diptych.request_id"


@dataclass(frozen=True, slots=True)
class KeptSpan:
    """One ended span. Ids are hexadecimal, times are nanoseconds of its process's wall clock."""

    trace_id: str
    span_id: str
    parent_id: str
    """Empty if it has none."""
    name: str
    service: str
    start_ns: int
    end_ns: int
    size: int
    """Bytes it had on the wire."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """What is kept at most; the traces that have been silent longest go first."""

    traces: int = 256
    spans_per_trace: int = 4096
    bytes_per_trace: int = 2 << 20
    bytes: int = 64 << 20


@dataclass(slots=True)
class _Trace:
    spans: dict[str, KeptSpan] = field(default_factory=dict)
    request_ids: set[str] = field(default_factory=set)
    size: int = 0
    is_cut: bool = False
    changed_at: float = 0.0


class TraceStore:
    """Traces by id, by request id, and the latest finished one."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._traces: dict[str, _Trace] = {}
        """Least recently changed first."""
        self._by_request: dict[str, str] = {}
        self._finished: dict[str, None] = {}
        """Traces whose root has ended, in the order of those ends."""
        self._size = 0

    def add(self, spans: Iterable[KeptSpan], now: float) -> int:
        """Keeps what there is room for; returns how many spans were refused. The same span twice counts once."""
        return sum(not self._add(span, now) for span in spans)

    def find(self, name: str) -> str | None:
        """The trace id for a trace id, a request id, or "" for the latest finished; None if it is not kept."""
        if not name:
            return next(reversed(self._finished), None)
        return name if name in self._traces else self._by_request.get(name)

    def spans(self, trace_id: str) -> list[KeptSpan]:
        """The spans of a kept trace by start."""
        return sorted(self._traces[trace_id].spans.values(), key=lambda span: (span.start_ns, -span.end_ns))

    def changed_at(self, trace_id: str) -> float:
        """When the last span of a kept trace arrived."""
        return self._traces[trace_id].changed_at

    def is_whole(self, trace_id: str) -> bool:
        """Nothing is known to be missing from the kept trace."""
        trace = self._traces[trace_id]
        if trace_id not in self._finished or trace.is_cut:
            return False
        return all(
            not span.parent_id or span.parent_id in trace.spans or span.name == ROOT for span in trace.spans.values()
        )

    def check_invariants(self) -> None:
        """Raises AssertionError if the books do not agree with each other or exceed the limits."""
        limits, traces = self._limits, self._traces
        assert len(traces) <= limits.traces and self._size <= limits.bytes
        assert self._size == sum(trace.size for trace in traces.values())
        for trace_id, trace in traces.items():
            assert len(trace.spans) <= limits.spans_per_trace and trace.size <= limits.bytes_per_trace
            assert trace.size == sum(span.size for span in trace.spans.values())
            assert (trace_id in self._finished) == any(span.name == ROOT for span in trace.spans.values())
        assert set(self._finished) <= set(traces)
        assert all(request in traces[trace_id].request_ids for request, trace_id in self._by_request.items())

    def _add(self, span: KeptSpan, now: float) -> bool:
        trace = self._traces.get(span.trace_id) or _Trace()
        is_known = span.span_id in trace.spans
        has_room = len(trace.spans) < self._limits.spans_per_trace
        has_room = has_room and trace.size + span.size <= self._limits.bytes_per_trace
        if not (is_known or has_room):
            trace.is_cut = True
            return False
        self._traces.pop(span.trace_id, None)
        self._traces[span.trace_id] = trace
        trace.changed_at = now
        if is_known:
            return True
        trace.spans[span.span_id] = span
        trace.size += span.size
        self._size += span.size
        if span.name == ROOT:
            self._note_root(span, trace)
        self._evict()
        return span.trace_id in self._traces

    def _note_root(self, span: KeptSpan, trace: _Trace) -> None:
        self._finished.pop(span.trace_id, None)
        self._finished[span.trace_id] = None
        if request_id := span.attributes.get(REQUEST_ID):
            trace.request_ids.add(request_id)
            self._by_request[request_id] = span.trace_id

    def _evict(self) -> None:
        while len(self._traces) > self._limits.traces or self._size > self._limits.bytes:
            oldest = next(iter(self._traces))
            trace = self._traces.pop(oldest)
            self._size -= trace.size
            self._finished.pop(oldest, None)
            for request_id in trace.request_ids:
                if self._by_request.get(request_id) == oldest:
                    del self._by_request[request_id]
