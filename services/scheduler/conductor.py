"""Carries stories out: facts from sessions go into the pure story, its effects become messages, segments and spans.

Owns every ticket from Start to its end, and forgets it on exactly one path (`_close`). Called on the loop thread only.
"""

import asyncio
import time
from collections.abc import Iterable
from functools import partial

from services.core.blocks import BlockNames
from services.core.errors import DiptychError, Draining, Overloaded
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
from services.scheduler.accounts import Accounts
from services.scheduler.alarm import Alarm
from services.scheduler.asking import Asking, Rules
from services.scheduler.cluster_view import ClusterView
from services.scheduler.entrance import Entrance
from services.scheduler.policies import POLICIES
from services.scheduler.retries import Retries, without
from services.scheduler.settings import Settings
from services.scheduler.story import NOT_BEGUN, Phase, Placement, Story
from services.scheduler.ticket import Outbox, Ticket, UpSession, own_first_attempt


class Conductor:
    """All tickets of this scheduler."""

    def __init__(self, process: Process[Settings], view: ClusterView) -> None:
        self._settings = process.settings
        self._telemetry = process.telemetry
        self._faults = process.faults
        self._view = view
        self._place = POLICIES[process.settings.policy]
        self._entrance = Entrance(process.settings.queue(), view)
        self._accounts = Accounts(view, self._entrance, process.metrics)
        self._retries = Retries(process.settings, view)
        self._queue = self._entrance.queue
        self._tickets: dict[RequestKey, Ticket] = {}
        self._by_gateway_key: dict[RequestKey, Ticket] = {}
        self._outbox = Outbox()
        self._expiry = Alarm(self.assign)
        """Who waits too long is told at that time, also when nothing else happens."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_draining = False
        self.send: messages.Send = messages.to_nobody
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
        """One step's events of a worker; those of attempts that are over find no ticket.

        Tokens alone change nothing for whoever waits, and leave with those of the other workers that spoke meanwhile.
        """
        has_changed = False
        for event in events.events:
            ticket = self._tickets.get(codec.key_from_pb(event))
            if ticket is None:
                continue
            if ticket.relays(event):
                self._outbox.pass_on(ticket, event)
                continue
            has_changed = True
            fault = outcome_of(partial(self._take, ticket, address, event, now))
            if fault is not None:
                self._carry_out(ticket, ticket.story.refused(fault), now)
        if self._retries.clear() or has_changed:
            self.assign()
        else:
            self._outbox.flush_soon()

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
        for request in self._entrance.candidates(now):
            ticket = self._tickets[request.key]
            closed = self._retries.closed_to(ticket, now)
            placement = self._placement(request, closed)
            if closed and not isinstance(placement, Placement):
                # Its turn comes.
                continue
            if placement is None:
                self._entrance.pass_over(request, ticket.model, now)
            elif isinstance(placement, DiptychError):
                self._queue.remove(request.key)
                self._carry_out(ticket, ticket.story.refused(placement), now)
            else:
                self._entrance.take(request, placement.cached_tokens(request))
                self._begin(ticket, placement)
        self._outbox.flush()
        self._expiry.set(min(filter(None, (self._queue.next_expiry(), self._retries.next_end(now))), default=None))

    def _placement(self, request: Request, closed: frozenset[str]) -> Placement | DiptychError | None:
        ticket = self._tickets[request.key]
        rules = Rules(self._settings.split, without(closed, self._entrance.restriction(request)))
        asking = Asking(request, self._view, ticket.names, time.monotonic(), rules)
        return outcome_of(partial(self._place, asking, ticket.model))

    # --- views

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    def class_loads(self) -> list[operations_pb2.ClassLoad]:
        """What each traffic class has here."""
        return self._accounts.class_loads()

    @property
    def num_tickets(self) -> int:
        return len(self._tickets)

    async def idle(self) -> None:
        """Returns once every story has ended; from now on new ones are refused."""
        self._is_draining = True
        await self._idle.wait()

    def hand_back(self) -> None:
        """The time is over: gateways go on elsewhere with what has not ended."""
        now = time.monotonic()
        for ticket in list(self._tickets.values()):
            self._carry_out(ticket, ticket.story.refused(Draining("this scheduler is leaving")), now)
        self._outbox.flush()

    def holdings(self) -> list[operations_pb2.Holding]:
        now = time.monotonic()
        return [ticket.holding(now) for ticket in self._tickets.values()]

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
        story = Story(request, self._settings.max_attempts, self._settings.max_deaths)
        self._retries.came()
        names = BlockNames(request.salt)
        ticket = Ticket(story, session, gateway_key, span, timeline, began=now, filed=request.key, names=names)
        self._accounts.opened(ticket)
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
            self._accounts.enter(ticket, now)
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
                if story.phase is Phase.STARTED:
                    self._accounts.first_token(ticket, now)
                facts = story.tokens(address, event.tokens.first_index, ids, logprobs)
            case "finished":
                ticket.cached_tokens = max(ticket.cached_tokens, event.finished.cached_tokens)
                facts = story.finished(address, codec.finish_reason_from_pb(event.finished))
            case "failed":
                error = codec.error_from_pb(event.failed)
                self._accounts.refused(address, error)
                facts = story.failed(address, error)
            case _:
                facts = []
        self._carry_out(ticket, facts, now)

    # --- private: effects

    def _begin(self, ticket: Ticket, placement: Placement) -> None:
        now, record = time.monotonic(), placement.record
        ticket.timeline.enter("scheduler.place", now, {"diptych.why": placement.why, **record.attributes()})
        ticket.note(placement)
        self._view.placed_on(ticket.story.request, record, now, placement.hashes)
        legs = ticket.story.placed(placement)
        self._retries.began(ticket)
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
        self._accounts.count(ticket)

    def _requeue(self, ticket: Ticket, error: DiptychError, now: float) -> None:
        """The story speaks of a new attempt: file it anew, ahead of those that have not begun."""
        if not isinstance(error, NOT_BEGUN) and (refusal := self._retries.lost(ticket, len(self._tickets), now)):
            return self._carry_out(ticket, ticket.story.refused(refusal), now)
        del self._tickets[ticket.filed]
        self._view.over(ticket.filed, now)
        ticket.filed = ticket.key
        self._tickets[ticket.filed] = ticket
        ticket.timeline.lapse("scheduler.lost_attempt", now)
        ticket.timeline.enter("scheduler.queue", now, {"diptych.because": error.reason})
        if not isinstance(error, Overloaded):
            # A worker that leaves may have begun it long ago, and is not asked again.
            ticket.queued_until = None
        ticket.queued_until = self._queue.push_back(ticket.story.request, now, ticket.queued_until, ticket.model)

    def _end(self, ticket: Ticket, end: effects.End, now: float) -> None:
        self._accounts.ended(ticket, end.error)
        ticket.timeline.close(now)
        self._outbox.add(ticket, messages.last_event(ticket, end))
        self._close(ticket, now, end.error)

    def _close(self, ticket: Ticket, now: float, error: DiptychError | None = None) -> None:
        ticket.timeline.close(now, error)
        self._telemetry.end(ticket.span, error)
        self._accounts.count(ticket)
        self._retries.over(ticket)
        self._queue.remove(ticket.filed)
        self._view.over(ticket.filed, now, len(ticket.story.emitted) if error is None else 0)
        self._tickets.pop(ticket.filed, None)
        self._by_gateway_key.pop(ticket.gateway_key, None)
        if not self._tickets:
            self._idle.set()
