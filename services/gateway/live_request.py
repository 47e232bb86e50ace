"""One request while the gateway works on it: its span, its answer, and what is told of it at the end."""

import asyncio
import time
from dataclasses import dataclass, field

import grpc
from opentelemetry.trace import Span

from services.core.errors import DeadlinePassed, DiptychError, InternalError
from services.core.request import Request
from services.gateway.answer import Answer, Closing, Usage
from services.gateway.call import Call, Head
from services.gateway.records import Record
from services.pb import operations_pb2
from services.runtime.edge import STATUS

_OURS = frozenset(
    {
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
"""Statuses that make a server's span an error, by OpenTelemetry's RPC conventions; the others are the caller's."""

DEADLINE_LEEWAY = 0.1
"""The client's clock began before the request came here: its cancellation at the deadline arrives before ours."""


@dataclass(slots=True)
class LiveRequest:
    """Everything about one request that more than one step of its way needs."""

    call: Call
    head: Head
    span: Span
    stage: str = "tokenize"
    """tokenize, wait or stream."""
    request: Request | None = None
    """The current attempt, once there is one."""
    answer: Answer | None = None
    closing: Closing | None = None
    stream_span: Span | None = None
    """From the first event to the last message."""
    first_text_at: float | None = None
    avoided: set[str] = field(default_factory=set)
    """Incarnations of schedulers that were lost or are leaving."""

    def close(self, now: float) -> Closing:
        """The ledger, closed at the first call."""
        if self.closing is None:
            total = now - self.call.received_at
            unaccounted = Closing((), total, total)
            self.closing = self.answer.closed(now) if self.answer else unaccounted
        return self.closing

    def outcome(self, error: BaseException | None) -> str:
        """A finish reason, `cancelled`, or the name of an error."""
        if error is None and self.answer and self.answer.reason:
            return self.answer.reason.value
        if isinstance(error, DiptychError):
            return error.reason
        if isinstance(error, asyncio.CancelledError | grpc.aio.UsageError):
            return DeadlinePassed.__name__ if self._is_at_deadline() else "cancelled"
        return InternalError.__name__

    def _is_at_deadline(self) -> bool:
        deadline = self.call.deadline
        return deadline is not None and time.monotonic() >= deadline - DEADLINE_LEEWAY

    def record(self, outcome: str, now: float) -> Record:
        answer = self.answer
        return Record(
            request_id=self.head.request_id,
            trace_id=self.head.trace_id,
            outcome=outcome,
            usage=answer.usage if answer else Usage(0, 0, 0),
            closing=self.close(now),
            decisions=tuple(answer.decisions) if answer else (),
        )

    def describe(self, outcome: str) -> None:
        """Puts on the span what is known at the end, under OpenTelemetry's GenAI names."""
        self.span.set_attribute("diptych.outcome", outcome)
        if self.request is not None:
            sampling = self.request.sampling
            self.span.set_attribute("gen_ai.request.model", self.head.model)
            self.span.set_attribute("gen_ai.request.max_tokens", self.request.stopping.max_tokens)
            self.span.set_attribute("gen_ai.request.temperature", sampling.temperature)
            self.span.set_attribute("gen_ai.request.top_p", sampling.top_p)
            self.span.set_attribute("gen_ai.request.seed", sampling.seed)
        if self.answer is not None:
            usage = self.answer.usage
            self.span.set_attribute("gen_ai.usage.input_tokens", usage.prompt_tokens)
            self.span.set_attribute("gen_ai.usage.output_tokens", usage.completion_tokens)
            if self.first_text_at is not None:
                first = self.first_text_at - self.call.received_at
                self.span.set_attribute("gen_ai.response.time_to_first_chunk", first)
            if self.answer.reason:
                self.span.set_attribute("gen_ai.response.finish_reasons", [self.answer.reason.value])

    def holding(self, now: float) -> operations_pb2.Holding:
        """For Audit."""
        return operations_pb2.Holding(
            kind="request",
            request_id=self.head.request_id,
            attempt=self.request.key.attempt if self.request else 0,
            age_seconds=now - self.call.received_at,
            count=self.answer.usage.completion_tokens if self.answer else 0,
            state=self.stage,
        )


def is_ours(error: BaseException | None) -> bool:
    """Whether a span that ended so is an error of the server's."""
    if isinstance(error, DiptychError):
        return STATUS[type(error)] in _OURS
    return isinstance(error, Exception)
