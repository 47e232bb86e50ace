"""One answer's way from a scheduler to the client, across as many schedulers as it takes."""

import asyncio
import time
from dataclasses import dataclass, field

from services.core.errors import Draining, NoWorkers, WorkerLost
from services.core.request import Request
from services.gateway.answer import Answer
from services.gateway.attempt import Attempt
from services.gateway.live_request import LiveRequest
from services.gateway.outlet import Outlet
from services.gateway.schedulers import Schedulers
from services.gateway.settings import Settings
from services.pb import session_pb2
from services.runtime.process import Process
from services.runtime.session import Session
from services.runtime.telemetry import traceparent


@dataclass(slots=True, eq=False)
class Pursuit:
    """Follows one answer to its end. Cancelled at any point, it drops the answer at the scheduler."""

    process: Process[Settings]
    schedulers: Schedulers
    live: LiveRequest
    answer: Answer
    outlet: Outlet
    has_prompt: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the answer's prompt was computed: the same prompt is then quickly found again."""
    losses: int = 0
    """Schedulers that were lost while they held the request; those that leave in good order do not count."""

    async def run(self, request: Request) -> None:
        """Returns when the answer is complete and sent.

        Raises NoWorkers, WorkerLost, what the scheduler answers with, and what the client's side raises.
        """
        try:
            while self.answer.reason is None:
                await self._attempt(request)
                request = request.next_attempt(self.answer.emitted)
            await self.outlet.end(self.answer)
        except Exception:
            # The time of a request that fails is told by the answer that failed.
            self.live.account = self.answer
            raise

    async def _attempt(self, request: Request) -> None:
        """Until the answer is complete, or another scheduler is to go on with it."""
        attempt_number = request.key.attempt
        self.live.note_attempt(attempt_number)
        session = await self._scheduler(request)
        incarnation = session.peer.incarnation
        with self.schedulers.start(request, traceparent(self.live.span), session) as attempt:
            self.answer.started(time.monotonic())
            try:
                if await self._follow(attempt):
                    return
                self.answer.lost(attempt_number, "the scheduler was lost", time.monotonic())
                self.losses += 1
                self.live.lost.add(incarnation)
            except Draining:
                self.answer.lost(attempt_number, "the scheduler was leaving", time.monotonic())
                self.live.left.add(incarnation)

    async def _scheduler(self, request: Request) -> Session[session_pb2.Down]:
        settings, key = self.process.settings, request.key
        if self.losses >= settings.max_attempts:
            raise WorkerLost(f"{self.losses} schedulers were lost while they held the request")
        try:
            return await self.schedulers.found(key.request_id, self.live.left, self.live.lost, settings.scheduler_wait)
        except NoWorkers as error:
            if key.attempt == 0:
                raise
            raise WorkerLost("the scheduler was lost and there is no other", retry_after=error.retry_after) from None

    async def _follow(self, attempt: Attempt) -> bool:
        """Sends on what comes, until the answer is complete; False if the session is gone before."""
        answer, was_told = self.answer, False
        while answer.reason is None:
            arrivals = await attempt.arrivals()
            if not arrivals:
                return False
            self._mark_streaming()
            for arrival in arrivals:
                answer.take(arrival.event, arrival.at)
            if answer.has_prompt:
                self.has_prompt.set()
            if answer.stopped_at is not None and answer.reason is None and not was_told:
                attempt.finish(answer.stopped_at)
                was_told = True
            if answer.reason is None:
                await self.outlet.send(answer.take_delta())
        return True

    def _mark_streaming(self) -> None:
        self.live.stage = "stream"
        if self.live.stream_span is None:
            self.live.stream_span = self.process.telemetry.start("gateway.stream", traceparent(self.live.span))
