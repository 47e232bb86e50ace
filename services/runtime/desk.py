"""A worker's desk: the requests it was given, by whom, and what it has told them.

Sessions bring Start, FirstToken, Cancel and Finish; the step loop brings events; at most one `Events` message per step
and session goes back (see `letters`). What differs between prefill and decode is the `Duty`. When a session ends, what
was started on it is cancelled.
"""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from services.core import batch_events
from services.core.errors import DiptychError, Draining, InvalidRequest
from services.core.ids import RequestKey
from services.core.plan import StepPlan
from services.core.request import FinishReason, Role
from services.pb import operations_pb2, session_pb2
from services.runtime import codec
from services.runtime.duty import Duty, UpSession, Work
from services.runtime.edge import outcome_of
from services.runtime.letters import Letters
from services.runtime.step_loop import StepLoop
from services.runtime.telemetry import Telemetry
from services.runtime.timeline import Timeline


class Desk:
    """Files works by key; owns the batch's requests on behalf of the sessions."""

    def __init__(self, loop: StepLoop, duty: Duty, telemetry: Telemetry, letters: Letters) -> None:
        self._loop = loop
        self._duty = duty
        self._telemetry = telemetry
        self._letters = letters
        self._works: dict[RequestKey, Work] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_draining = False

    # --- sessions

    def opened(self, session: UpSession) -> None:
        """Any caller with the cluster's token may start requests."""

    def received(self, session: UpSession, message: session_pb2.Down, now: float) -> None:
        match message.WhichOneof("kind"):
            case "start":
                self._start(session, message.start, now)
            case "first_token":
                self._first_token(message.first_token, now)
            case "cancel":
                self._cancel(codec.key_from_pb(message.cancel))
            case "finish":
                self._finish(codec.key_from_pb(message.finish), now)

    def closed(self, session: UpSession) -> None:
        for work in [work for work in self._works.values() if work.session is session]:
            self._cancel(work.key)
        self._letters.closed(session)

    # --- the step loop

    def planned(self, plan: StepPlan, now: float) -> None:
        for chunk in plan.chunks:
            if work := self._works.get(chunk.key):
                self._duty.planned(work, now)

    def deliver(self, events: list[batch_events.Event], now: float) -> None:
        told: dict[int, _Told] = {}
        for event in events:
            if (work := self._works.get(event.key)) is None:
                self._let_go(event)
                continue
            answers = outcome_of(partial(self._answers, work, event, now))
            if isinstance(answers, DiptychError):
                self._drop(work)
                answers = [codec.failed_event(work.key, answers)]
            told.setdefault(id(work.session), _Told(work.session)).add(work, answers)
        for each in told.values():
            self._letters.add(each.session, each.events, can_wait=each.can_wait)

    async def idle(self) -> None:
        """Returns once nothing is on the desk; from now on what comes is refused."""
        self._is_draining = True
        await self._idle.wait()

    def hand_back(self) -> None:
        """The time is over: schedulers go on elsewhere with what is still here."""
        for work in list(self._works.values()):
            self._drop(work)
            self._letters.add(work.session, [codec.failed_event(work.key, Draining("this worker is leaving"))])

    def holdings(self) -> list[operations_pb2.Holding]:
        """Works on the desk and what the batch holds, for the audit."""
        now = time.monotonic()
        batcher = self._loop.batcher
        works = [("work", w.key, now - w.began, 1, w.timeline.segment) for w in self._works.values()]
        batch = [("request", h.key, h.age, h.blocks, h.state.value) for h in batcher.holdings(now)]
        held = [self._owned(_holding(*each), each[1], now) for each in (*works, *batch)]
        if count := batcher.pinned_blocks:
            held.append(operations_pb2.Holding(kind="pinned blocks", count=count))
        return held

    # --- private

    def _owned(self, holding: operations_pb2.Holding, key: RequestKey, now: float) -> operations_pb2.Holding:
        """Held for whoever started the work, if there still is one."""
        if work := self._works.get(key):
            holding.owner = work.session.owner
            holding.last_heard_seconds = now - work.session.heard_at
        return holding

    def _start(self, session: UpSession, start: session_pb2.Start, now: float) -> None:
        error = outcome_of(lambda: self._take(session, start, now))
        if error is not None:
            self._letters.add(session, [codec.failed_event(codec.key_from_pb(start), error)])

    def _take(self, session: UpSession, start: session_pb2.Start, now: float) -> None:
        if self._is_draining:
            raise Draining("this worker is leaving")
        request = codec.request_from_pb(start, now)
        if request.role not in self._duty.roles:
            raise InvalidRequest("this worker does not take this role", field="role")
        sources = codec.sources_from_pb(start) if request.role is not Role.DECODE else ()
        self._loop.batcher.add(request, now, self._duty.known(sources, now))
        timeline = Timeline(self._telemetry, start.traceparent, now)
        conclude = partial(self._conclude, request.key)
        work = Work(request, session, timeline, start.kvstore, began=now, conclude=conclude, sources=sources)
        self._works[work.key] = work
        self._idle.clear()
        self._duty.begin(work, now)
        self._loop.wake()

    def _first_token(self, message: session_pb2.FirstToken, now: float) -> None:
        if work := self._works.get(codec.key_from_pb(message)):
            self._loop.batcher.first_token(work.key, message.token)
            self._duty.first_token(work, now)
            self._loop.wake()

    def _cancel(self, key: RequestKey) -> None:
        if work := self._works.get(key):
            self._drop(work)

    def _finish(self, key: RequestKey, now: float) -> None:
        """The gateway has seen a stop string: the answer is complete, and the ledger goes back."""
        if work := self._works.get(key):
            work.timeline.close(now)
            segments = work.timeline.take()
            self._drop(work)
            self._letters.add(
                work.session, [codec.finished_event(key, FinishReason.STOP, segments, work.cached_tokens)]
            )

    def _conclude(self, key: RequestKey, event: session_pb2.Event) -> None:
        """The duty is done with a work that it held on to after the batch."""
        if work := self._works.get(key):
            self._forget(work)
            self._letters.add(work.session, [event])

    def _drop(self, work: Work) -> None:
        self._loop.batcher.cancel(work.key)
        self._duty.abandon(work)
        self._forget(work)
        self._loop.wake()

    def _forget(self, work: Work) -> None:
        work.timeline.close(time.monotonic())
        self._works.pop(work.key, None)
        if not self._works:
            self._idle.set()

    def _answers(self, work: Work, event: batch_events.Event, now: float) -> Iterable[session_pb2.Event]:
        match event:
            case batch_events.Started():
                if work.request.role is not Role.DECODE:
                    work.cached_tokens = event.cached_tokens
                self._duty.started(work, now)
            case batch_events.Reserved():
                self._duty.reserved(work, event, now)
            case batch_events.Sealed():
                self._duty.sealed(work, event.blocks)
            case batch_events.Emitted():
                segments = self._duty.emitted(work, now)
                logprobs = () if event.logprobs is None else (event.logprobs,)
                return [codec.tokens_event(work.key, event.index, [event.token], segments, logprobs)]
            case batch_events.Finished():
                return self._finished(work, event.reason, now)
            case batch_events.Failed():
                work.timeline.close(now, event.error)
                self._duty.abandon(work)
                self._forget(work)
                return [codec.failed_event(work.key, event.error, work.timeline.take())]
            case batch_events.Preempted():
                pass
        return []

    def _let_go(self, event: batch_events.Event) -> None:
        """Of a work that is gone: nobody copies what was sealed or fills what was reserved for it."""
        match event:
            case batch_events.Sealed():
                for block in event.blocks:
                    self._loop.batcher.unpin(block.block)
            case batch_events.Reserved():
                self._loop.batcher.no_more(event.key)

    def _finished(self, work: Work, reason: FinishReason, now: float) -> Iterable[session_pb2.Event]:
        work.timeline.close(now)
        if not self._duty.finished(work, reason):
            return []
        self._forget(work)
        return [codec.finished_event(work.key, reason, work.timeline.take(), work.cached_tokens)]


@dataclass(slots=True)
class _Told:
    """What one step says to one session."""

    session: UpSession
    events: list[session_pb2.Event] = field(default_factory=list)
    can_wait: bool = True
    """Nothing but tokens after the first of their answers."""

    def add(self, work: Work, answers: Iterable[session_pb2.Event]) -> None:
        for answer in answers:
            is_token = answer.WhichOneof("kind") == "tokens"
            self.can_wait = self.can_wait and is_token and work.has_spoken
            work.has_spoken = work.has_spoken or is_token
            self.events.append(answer)


def _holding(kind: str, key: RequestKey, age: float, count: int, state: str) -> operations_pb2.Holding:
    return operations_pb2.Holding(
        kind=kind, request_id=key.request_id, attempt=key.attempt, age_seconds=age, count=count, state=state
    )
