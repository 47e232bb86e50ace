"""A story's effects as messages: what workers and gateways are told. Holds no state."""

from dataclasses import replace
from itertools import starmap
from typing import Protocol

from services.core.request import Role
from services.pb import session_pb2
from services.runtime import codec
from services.runtime.telemetry import traceparent
from services.scheduler.decision import Candidate
from services.scheduler.story import CancelLeg, End, FinishLeg, PassFirstToken, Placement
from services.scheduler.ticket import Ticket


class Send(Protocol):
    """Sends to a worker by address; whether it has a live session to carry the message."""

    def __call__(self, address: str, message: session_pb2.Down) -> bool: ...


def to_nobody(address: str, message: session_pb2.Down) -> bool:
    """While there are no sessions."""
    return False


def start(ticket: Ticket, role: Role, now: float) -> session_pb2.Down:
    """The current attempt for a worker in `role`.

    There it is as important as its class: a client's own priority is worth nothing against other clients.
    """
    request = replace(ticket.story.request, role=role, priority=ticket.level, client="", traffic_class="")
    kvstore = ticket.placement.kvstore if ticket.placement else ""
    sources = ticket.placement.sources if ticket.placement and role is not Role.DECODE else ()
    return session_pb2.Down(start=codec.start_to_pb(request, now, traceparent(ticket.span), kvstore, sources))


def to_worker(ticket: Ticket, effect: PassFirstToken | CancelLeg | FinishLeg) -> session_pb2.Down:
    """What a worker that has begun is told next."""
    request_id, attempt = ticket.filed.request_id, ticket.filed.attempt
    match effect:
        case PassFirstToken(_, token):
            first = session_pb2.FirstToken(request_id=request_id, attempt=attempt, token=token)
            return session_pb2.Down(first_token=first)
        case CancelLeg():
            return session_pb2.Down(cancel=session_pb2.Cancel(request_id=request_id, attempt=attempt))
        case FinishLeg(_, index):
            return session_pb2.Down(finish=session_pb2.Finish(request_id=request_id, attempt=attempt, index=index))


def last_event(ticket: Ticket, end: End) -> session_pb2.Event:
    """How it ended, with the ledger, and where it ran and why."""
    segments = ticket.timeline.take()
    if end.error is not None:
        event = codec.failed_event(ticket.gateway_key, end.error, segments)
        event.placements.extend(starmap(_placement_record, ticket.places))
        return event
    assert end.reason is not None
    event = codec.finished_event(ticket.gateway_key, end.reason, segments, ticket.cached_tokens)
    if placement := ticket.placement:
        event.finished.prefill, event.finished.decode = placement.prefill, placement.decode
        event.finished.kvstore, event.finished.why = placement.kvstore, placement.why
    event.placements.extend(starmap(_placement_record, ticket.places))
    return event


def _placement_record(attempt: int, placement: Placement) -> session_pb2.PlacementRecord:
    record = placement.record
    return session_pb2.PlacementRecord(
        attempt=attempt,
        policy=record.policy,
        reason=record.reason,
        prefill=placement.prefill,
        decode=placement.decode,
        kvstore=placement.kvstore,
        why=placement.why,
        ttft_seconds=record.ttft,
        itl_seconds=record.itl,
        uncached_tokens=record.uncached_tokens,
        candidates=map(_candidate, record.candidates),
        others=record.others,
    )


def _candidate(candidate: Candidate) -> session_pb2.PlacementCandidate:
    return session_pb2.PlacementCandidate(
        role=candidate.role,
        worker=candidate.worker,
        cost_seconds=candidate.cost,
        terms=[session_pb2.TimeSegment(name=name, seconds=seconds) for name, seconds in candidate.terms],
        cached_blocks=candidate.cached_blocks,
    )
