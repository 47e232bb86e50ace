"""One request while the gateway works on it: its span, its answers, and what is told of it at the end."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc
from opentelemetry.trace import Span

from services.core.errors import DeadlinePassed, DiptychError, InternalError
from services.core.request import Request
from services.gateway.answer import Answer, Closing, Usage, total_usage
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
    """What the first answer was asked with, once it is known."""
    answers: Sequence[Answer] = ()
    """By index."""
    account: Answer | None = None
    """Whose ledger tells the request's time: the answer that ended last, or failed; the first until then."""
    attempt: int = 0
    """The highest number of an attempt at any answer."""
    closing: Closing | None = None
    stream_span: Span | None = None
    """From the first event to the last message."""
    first_text_at: float | None = None
    left: set[str] = field(default_factory=set)
    """Incarnations of schedulers that are leaving."""
    lost: set[str] = field(default_factory=set)
    """Incarnations of schedulers to which a session was lost; they are asked again if there is no other."""

    def begin(self, request: Request, answers: Sequence[Answer]) -> None:
        """What is asked for is known."""
        self.request = request
        self.answers = answers
        self.account = answers[0]

    def note_attempt(self, number: int) -> None:
        self.attempt = max(self.attempt, number)

    @property
    def usage(self) -> Usage:
        """Of all answers."""
        return total_usage(self.answers)

    def close(self, now: float) -> Closing:
        """The ledger, closed at the first call."""
        if self.closing is None:
            total = now - self.call.received_at
            unaccounted = Closing((), total, total)
            self.closing = self.account.closed(now) if self.account else unaccounted
        return self.closing

    def outcome(self, error: BaseException | None) -> str:
        """A finish reason, `cancelled`, or the name of an error."""
        if error is None and self.account and self.account.reason:
            return self.account.reason.value
        if isinstance(error, DiptychError):
            return error.reason
        if isinstance(error, asyncio.CancelledError | grpc.aio.UsageError):
            return DeadlinePassed.__name__ if self._is_at_deadline() else "cancelled"
        return InternalError.__name__

    def _is_at_deadline(self) -> bool:
        deadline = self.call.deadline
        return deadline is not None and time.monotonic() >= deadline - DEADLINE_LEEWAY

    def record(self, outcome: str, now: float) -> Record:
        return Record(
            request_id=self.head.request_id,
            trace_id=self.head.trace_id,
            outcome=outcome,
            usage=self.usage,
            closing=self.close(now),
            decisions=tuple(decision for answer in self.answers for decision in answer.decisions),
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
            self.span.set_attribute("gen_ai.request.choice.count", len(self.answers))
        if self.answers:
            usage = self.usage
            self.span.set_attribute("gen_ai.usage.input_tokens", usage.prompt_tokens)
            self.span.set_attribute("gen_ai.usage.output_tokens", usage.completion_tokens)
            if self.first_text_at is not None:
                first = self.first_text_at - self.call.received_at
                self.span.set_attribute("gen_ai.response.time_to_first_chunk", first)
            if reasons := [answer.reason.value for answer in self.answers if answer.reason]:
                self.span.set_attribute("gen_ai.response.finish_reasons", reasons)

    def holding(self, now: float) -> operations_pb2.Holding:
        """For Audit."""
        return operations_pb2.Holding(
            kind="request",
            request_id=self.head.request_id,
            attempt=self.attempt,
            age_seconds=now - self.call.received_at,
            count=self.usage.completion_tokens,
            state=self.stage,
        )


def is_ours(error: BaseException | None) -> bool:
    """Whether a span that ended so is an error of the server's."""
    if isinstance(error, DiptychError):
        return STATUS[type(error)] in _OURS
    return isinstance(error, Exception)
