"""Carries stories out: facts from sessions go into the pure story, its effects become messages, segments and spans.

Owns every ticket from Start to its end, and forgets it on exactly one path (`_close`). Called on the loop thread only.
"""

import asyncio
import time
from collections.abc import Iterable
from functools import partial
from typing import Protocol

from services.core.blocks import BlockNames
from services.core.errors import DiptychError, Draining, EngineFault, Overloaded
from services.core.ids import RequestKey
from services.core.request import Request
from services.pb import operations_pb2, session_pb2
from services.runtime import codec
from services.runtime.edge import outcome_of
from services.runtime.process import Process
from services.runtime.telemetry import traceparent
from services.runtime.timeline import Timeline
from services.scheduler import messages
from services.scheduler import story as effects
from services.scheduler.admission import Queue
from services.scheduler.cluster_view import ClusterView
from services.scheduler.policy import place
from services.scheduler.settings import Settings
from services.scheduler.story import NOT_BEGUN, Placement, Story
from services.scheduler.ticket import Outbox, Ticket, UpSession, own_first_attempt


class Send(Protocol):
    """Sends to a worker by address; whether it has a live session to carry the message."""

    def __call__(self, address: str, message: session_pb2.Down) -> bool: ...


def _nobody(address: str, message: session_pb2.Down) -> bool:
    return False


class Conductor:
    """All tickets of this scheduler."""

    def __init__(self, process: Process[Settings], view: ClusterView) -> None:
        self._settings = process.settings
        self._telemetry = process.telemetry
        self._faults = process.faults
        self._view = view
        self._queue = Queue(process.settings.max_queue, process.settings.queue_timeout)
        self._tickets: dict[RequestKey, Ticket] = {}
        self._by_gateway_key: dict[RequestKey, Ticket] = {}
        self._outbox = Outbox()
        self._expiry: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_draining = False
        self.send: Send = _nobody
        """How to reach workers; set by whoever owns the sessions to them."""

    # --- gateways

    def opened(self, session: UpSession) -> None:
        """Any caller with the cluster's token may start requests."""

    def received(self, session: UpSession, message: session_pb2.Down, now: float) -> None:
        match message.WhichOneof("kind"):
            case "start":
                self._start(session, message.start, now)
            case "cancel":
                if ticket := self._by_gateway_key.get(codec.key_from_pb(message.cancel)):
                    self._cancel(ticket, now)
            case "finish":
                if ticket := self._by_gateway_key.get(codec.key_from_pb(message.finish)):
                    self._carry_out(ticket, ticket.story.stop_seen(message.finish.index), now)
        self.assign()

    def closed(self, session: UpSession) -> None:
        now = time.monotonic()
        for ticket in [ticket for ticket in self._tickets.values() if ticket.session is session]:
            self._cancel(ticket, now)
        self.assign()

    # --- workers

    def heard(self, address: str, events: session_pb2.Events, now: float) -> None:
        """One step's events of a worker; those of attempts that are over find no ticket."""
        for event in events.events:
            if ticket := self._tickets.get(codec.key_from_pb(event)):
                fault = outcome_of(partial(self._take, ticket, address, event, now))
                if fault is not None:
                    self._carry_out(ticket, ticket.story.refused(fault), now)
        self.assign()

    def lost(self, address: str) -> None:
        """A worker's session ended."""
        now = time.monotonic()
        for ticket in list(self._tickets.values()):
            self._carry_out(ticket, ticket.story.lost(address), now)
        self.assign()

    # --- placing

    def assign(self) -> None:
        """Gives places while there are any; called after every change."""
        now = time.monotonic()
        for late, error in self._queue.expired(now):
            ticket = self._tickets[late.key]
            self._carry_out(ticket, ticket.story.refused(error), now)
        while (request := self._queue.head()) and (placement := self._placement(request)):
            ticket = self._tickets[self._queue.pop().key]
            if isinstance(placement, DiptychError):
                self._carry_out(ticket, ticket.story.refused(placement), now)
            else:
                self._begin(ticket, placement)
        self._outbox.flush()
        self._set_expiry()

    def _placement(self, request: Request) -> Placement | DiptychError | None:
        ticket = self._tickets[request.key]
        return outcome_of(partial(place, request, self._view, ticket.names, ticket.session.peer.fingerprint))

    # --- views

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    @property
    def num_tickets(self) -> int:
        return len(self._tickets)

    async def idle(self) -> None:
        """Returns once every story has ended; from now on new ones are refused."""
        self._is_draining = True
        await self._idle.wait()

    def holdings(self) -> list[operations_pb2.Holding]:
        now = time.monotonic()
        return [
            operations_pb2.Holding(
                kind="story",
                request_id=ticket.key.request_id,
                attempt=ticket.key.attempt,
                age_seconds=now - ticket.began,
                count=1,
                state=ticket.story.phase.value,
                owner=ticket.session.owner,
                last_heard_seconds=now - ticket.session.heard_at,
            )
            for ticket in self._tickets.values()
        ]

    # --- private: facts

    def _start(self, session: UpSession, start: session_pb2.Start, now: float) -> None:
        gateway_key = codec.key_from_pb(start)
        request = outcome_of(lambda: own_first_attempt(codec.request_from_pb(start, now)))
        if isinstance(request, DiptychError):
            refusal = session_pb2.Events(events=[codec.failed_event(gateway_key, request)])
            session.send(session_pb2.Up(events=refusal))
            return
        span = self._telemetry.start("scheduler.request", start.traceparent)
        timeline = Timeline(self._telemetry, traceparent(span), now)
        story = Story(request, self._settings.max_attempts)
        names = BlockNames(request.salt)
        ticket = Ticket(story, session, gateway_key, span, timeline, began=now, filed=request.key, names=names)
        self._tickets[ticket.key] = self._by_gateway_key[gateway_key] = ticket
        self._idle.clear()
        timeline.enter("scheduler.queue", now)
        if delay := self._faults.at("scheduler.queue").delay:
            asyncio.get_running_loop().call_later(delay, self._enqueue, ticket)
        else:
            self._enqueue(ticket)

    def _enqueue(self, ticket: Ticket) -> None:
        if ticket.key not in self._tickets:
            return
        now = time.monotonic()
        try:
            if self._is_draining:
                raise Draining("this scheduler is leaving")
            ticket.queued_until = self._queue.push(ticket.story.request, now)
        except DiptychError as error:
            self._carry_out(ticket, ticket.story.refused(error), now)
        self.assign()

    def _cancel(self, ticket: Ticket, now: float) -> None:
        self._carry_out(ticket, ticket.story.cancelled(), now)
        self._close(ticket, now)

    def _take(self, ticket: Ticket, address: str, event: session_pb2.Event, now: float) -> None:
        if event.segments and ticket.placement:
            leg = "prefill" if address == ticket.placement.prefill else "decode"
            ticket.timeline.absorb(f"hop.scheduler_{leg}", codec.segments_from_pb(event.segments), now)
        story = ticket.story
        match event.WhichOneof("kind"):
            case "tokens":
                ids, logprobs = tuple(event.tokens.ids), codec.logprobs_from_pb(event.tokens)
                facts = story.tokens(address, event.tokens.first_index, ids, logprobs)
            case "finished":
                ticket.cached_tokens = max(ticket.cached_tokens, event.finished.cached_tokens)
                facts = story.finished(address, codec.finish_reason_from_pb(event.finished))
            case "failed":
                error = codec.error_from_pb(event.failed)
                self._note_refusal(address, error)
                facts = story.failed(address, error)
            case _:
                facts = []
        self._carry_out(ticket, facts, now)

    def _note_refusal(self, address: str, error: DiptychError) -> None:
        """What a worker says of itself by refusing counts until it speaks again."""
        if isinstance(error, Overloaded):
            self._view.overloaded.add(address)
        elif isinstance(error, Draining | EngineFault):
            self._view.withdraw(address)

    # --- private: effects

    def _begin(self, ticket: Ticket, placement: Placement) -> None:
        ticket.timeline.enter("scheduler.place", time.monotonic(), {"diptych.why": placement.why})
        ticket.placement = placement
        legs = ticket.story.placed(placement)
        self._carry_out(ticket, legs, time.monotonic())
        if ticket.timeline.segment == "scheduler.place":
            ticket.timeline.close(time.monotonic())

    def _carry_out(self, ticket: Ticket, todo: Iterable[effects.Effect], now: float) -> None:
        for effect in todo:
            match effect:
                case effects.Relay(first_index, ids, logprobs):
                    event = codec.tokens_event(ticket.gateway_key, first_index, ids, logprobs=logprobs)
                    self._outbox.add(ticket, event)
                case effects.Requeue(error):
                    self._requeue(ticket, error, now)
                case effects.End():
                    self._end(ticket, effect, now)
                case effects.StartLeg(worker, role):
                    if not self.send(worker, messages.start(ticket, role, now)):
                        self._view.drop(worker)
                        return self._carry_out(ticket, ticket.story.lost(worker), now)
                case _:
                    # To a worker that is gone nothing needs to be said: `lost` follows.
                    self.send(effect.worker, messages.to_worker(ticket, effect))
        self._count(ticket)

    def _count(self, ticket: Ticket) -> None:
        """Brings the view's count of requests per worker up to date."""
        workers = ticket.story.workers
        for worker in workers - ticket.counted:
            self._view.count(worker, 1)
        for worker in ticket.counted - workers:
            self._view.count(worker, -1)
        ticket.counted = workers

    def _requeue(self, ticket: Ticket, error: DiptychError, now: float) -> None:
        """The story speaks of a new attempt: file it anew, ahead of those that have not begun."""
        del self._tickets[ticket.filed]
        ticket.filed = ticket.key
        self._tickets[ticket.filed] = ticket
        ticket.timeline.lapse("scheduler.lost_attempt", now)
        ticket.timeline.enter("scheduler.queue", now, {"diptych.because": error.reason})
        if not isinstance(error, NOT_BEGUN):
            ticket.queued_until = None
        ticket.queued_until = self._queue.push_back(ticket.story.request, now, ticket.queued_until)

    def _end(self, ticket: Ticket, end: effects.End, now: float) -> None:
        ticket.timeline.close(now)
        self._outbox.add(ticket, messages.last_event(ticket, end))
        self._close(ticket, now, end.error)

    def _close(self, ticket: Ticket, now: float, error: DiptychError | None = None) -> None:
        ticket.timeline.close(now, error)
        self._telemetry.end(ticket.span, error)
        self._count(ticket)
        self._queue.remove(ticket.filed)
        self._tickets.pop(ticket.filed, None)
        self._by_gateway_key.pop(ticket.gateway_key, None)
        if not self._tickets:
            self._idle.set()

    def _set_expiry(self) -> None:
        """Who waits too long is told at that time, also when nothing else happens."""
        if self._expiry is not None:
            self._expiry.cancel()
        due = self._queue.next_expiry()
        loop = asyncio.get_running_loop()
        self._expiry = loop.call_later(max(due - time.monotonic(), 0.0), self.assign) if due is not None else None
