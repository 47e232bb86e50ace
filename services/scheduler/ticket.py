"""One request on the scheduler: its story, whom to tell, and the account of its time."""

import asyncio
from dataclasses import dataclass, field, replace

from opentelemetry.trace import Span

from services.core.blocks import BlockNames
from services.core.ids import RequestKey
from services.core.request import Request
from services.pb import operations_pb2, session_pb2
from services.runtime.session import Session
from services.runtime.timeline import Timeline
from services.scheduler.story import Placement, Story

UpSession = Session[session_pb2.Up]

MOST_PLACES = 8
"""Placements of one request that are remembered; the earliest are forgotten."""

ATTEMPTS_PER_START = 256
"""A gateway counts the schedulers it tried; each scheduler counts its own attempts below that, so that no two attempts
of a request ever share a number, whoever made them."""


def own_first_attempt(request: Request) -> Request:
    """The request as this scheduler's first attempt."""
    key = RequestKey(request.key.request_id, request.key.attempt * ATTEMPTS_PER_START)
    return replace(request, key=key)


@dataclass(slots=True, eq=False)
class Ticket:
    """From Start to the last event; filed under the attempt that is current."""

    story: Story
    session: UpSession
    """The gateway's."""
    gateway_key: RequestKey
    """What the gateway calls this request."""
    span: Span
    timeline: Timeline
    began: float
    filed: RequestKey
    """The attempt it is filed under."""
    names: BlockNames
    """Of its blocks, in every attempt."""
    level: int = 0
    """Importance of its traffic class."""
    placement: Placement | None = None
    """The latest."""
    places: list[tuple[int, Placement]] = field(default_factory=list)
    """The latest few and the attempts they were for, for the record."""
    expected: float = 0.0
    """Seconds from `began` to the first token, as expected when it was let in; 0 if that is not followed, or over."""
    queued_until: float | None = None
    """When waiting for a place ends; kept while no worker has begun."""
    cached_tokens: int = 0
    counted: frozenset[str] = frozenset()
    """Workers on which it counts in the cluster view."""

    @property
    def model(self) -> str:
        """Digest of the model that its gateway serves; empty: any."""
        return self.session.peer.fingerprint

    def relays(self, event: session_pb2.Event) -> bool:
        """Whether an event is nothing but the next tokens of an answer; they are then noted in its story."""
        if event.segments or not event.HasField("tokens") or event.tokens.logprobs:
            return False
        return self.story.goes_on(event.tokens.first_index, event.tokens.ids)

    def note(self, placement: Placement) -> None:
        """The current attempt has a place."""
        self.placement = placement
        self.places = [*self.places[1 - MOST_PLACES :], (self.key.attempt, placement)]

    @property
    def key(self) -> RequestKey:
        return self.story.request.key

    def holding(self, now: float) -> operations_pb2.Holding:
        """For Audit."""
        return operations_pb2.Holding(
            kind="story",
            request_id=self.key.request_id,
            attempt=self.key.attempt,
            age_seconds=now - self.began,
            count=1,
            state=self.story.phase.value,
            owner=self.session.owner,
            last_heard_seconds=now - self.session.heard_at,
        )


@dataclass(slots=True)
class Outbox:
    """Events for gateways, gathered while one message is worked through, sent as one message per session."""

    _letters: dict[int, tuple[UpSession, list[session_pb2.Event]]] = field(default_factory=dict)
    _is_leaving: bool = False
    """It is about to be sent."""

    def add(self, ticket: Ticket, event: session_pb2.Event) -> None:
        self._letters.setdefault(id(ticket.session), (ticket.session, []))[1].append(event)

    def pass_on(self, ticket: Ticket, event: session_pb2.Event) -> None:
        """A worker's event as it came, under the gateway's name of the attempt."""
        event.attempt = ticket.gateway_key.attempt
        self.add(ticket, event)

    def flush_soon(self) -> None:
        """Once what other workers have said meanwhile is in it."""
        if not self._is_leaving:
            self._is_leaving = True
            asyncio.get_running_loop().call_soon(self._leave)

    def flush(self) -> None:
        for session, events in self._letters.values():
            if session.is_open:
                session.send(session_pb2.Up(events=session_pb2.Events(events=events)))
        self._letters.clear()

    def _leave(self) -> None:
        self._is_leaving = False
        self.flush()
