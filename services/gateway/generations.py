"""All requests in progress: taken up or refused, bounded by their deadline, counted and remembered on every exit."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from opentelemetry.trace import SpanKind

from services.core.errors import DeadlinePassed, Draining, Overloaded, RateLimited
from services.core.ids import RequestId
from services.gateway.call import Call, Caller, Head
from services.gateway.clients import Tiers
from services.gateway.conversation import Conversation
from services.gateway.live_request import LiveRequest, is_ours
from services.gateway.records import Records
from services.gateway.schedulers import Schedulers
from services.gateway.served_model import ServedModel
from services.gateway.settings import Settings
from services.gateway.validation import Limits
from services.pb import operations_pb2
from services.runtime.process import Process
from services.runtime.telemetry import trace_id


class Generations:
    """Answers calls, and knows which are in progress."""

    def __init__(
        self, process: Process[Settings], model: ServedModel, schedulers: Schedulers, records: Records
    ) -> None:
        self._process = process
        self.model = model
        self._schedulers = schedulers
        self._records = records
        settings = process.settings
        self.limits = Limits(
            messages=settings.max_messages,
            stops=settings.max_stops,
            answers=settings.max_answers,
            tiers=Tiers(settings.service_tiers, settings.key_classes),
        )
        self._conversation = Conversation(process, model, schedulers, self.limits)
        self._live: dict[RequestId, LiveRequest] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    def load(self) -> operations_pb2.Load:
        return operations_pb2.Load(running=len(self._live), max_running=self._process.settings.max_requests)

    def holdings(self) -> list[operations_pb2.Holding]:
        """What is held, for Audit."""
        now = time.monotonic()
        return [live.holding(now) for live in self._live.values()] + self._schedulers.holdings()

    async def idle(self) -> None:
        """Returns once nothing is in progress."""
        await self._idle.wait()

    @asynccontextmanager
    async def taken_up(self, call: Call) -> AsyncIterator[LiveRequest]:
        """A request from its admission to its record; its root span ends here, once, on every exit.

        Raises Draining, Overloaded or RateLimited if it is not admitted.
        """
        live = self._admitted(call)
        error: BaseException | None = None
        try:
            yield live
        except BaseException as raised:
            error = raised
            raise
        finally:
            del self._live[live.head.request_id]
            if not self._live:
                self._idle.set()
            self._conclude(live, error)

    async def answer(self, live: LiveRequest, caller: Caller) -> None:
        """Answers a call that was taken up, to the last message.

        Raises the DiptychError that says what went wrong; DeadlinePassed also if the client does not read its answer.
        """
        deadline = live.call.deadline
        try:
            async with asyncio.timeout(None if deadline is None else deadline - time.monotonic()):
                await self._conversation.run(live, caller)
        except TimeoutError:
            raise DeadlinePassed("the deadline passed before the answer was complete") from None

    def _admitted(self, call: Call) -> LiveRequest:
        if self._process.stopping.is_set():
            raise Draining("this gateway is leaving; try another")
        if len(self._live) >= self._process.settings.max_requests:
            raise Overloaded("too many requests are in progress", retry_after=1.0)
        most = self._process.settings.max_requests_per_key
        if most and call.key and sum(live.call.key == call.key for live in self._live.values()) >= most:
            raise RateLimited("too many requests with this key are in progress", retry_after=1.0)
        request_id = RequestId(uuid.uuid4().hex)
        attributes = {
            "gen_ai.operation.name": call.operation,
            "gen_ai.provider.name": "diptych",
            "gen_ai.response.id": request_id,
            "diptych.request_id": request_id,
        }
        if call.client_request_id:
            attributes["diptych.client_request_id"] = call.client_request_id
        telemetry = self._process.telemetry
        span = telemetry.start("gateway.request", call.traceparent, kind=SpanKind.SERVER, attributes=attributes)
        live = LiveRequest(call, Head(request_id, trace_id(span), self.model.name), span)
        self._live[request_id] = live
        self._idle.clear()
        return live

    def _conclude(self, live: LiveRequest, error: BaseException | None) -> None:
        now = time.monotonic()
        outcome = live.outcome(error)
        record = live.record(outcome, now)
        live.describe(outcome)
        self._process.telemetry.end(live.span, error if is_ours(error) else None)
        self._records.add(record)
        metrics = self._process.metrics
        metrics.count("diptych_requests_total", outcome=outcome)
        if error is None:
            metrics.observe("diptych_request_seconds", record.closing.total_seconds)
            metrics.count("diptych_prompt_tokens_total", record.usage.prompt_tokens)
            metrics.count("diptych_completion_tokens_total", record.usage.completion_tokens)
