"""The queue: bounded, by priority and then arrival; who has waited too long is told so at that time."""

from bisect import insort
from dataclasses import dataclass, field

from services.core.errors import DeadlinePassed, DiptychError, Overloaded, QueueTimeout
from services.core.ids import RequestKey
from services.core.request import Request

RETRY_AFTER_SECONDS = 1.0
_SETBACKS_FIRST = 1 << 62
"""Ranks whoever lost a place before every arrival, and among themselves in order."""


@dataclass(order=True, slots=True)
class _Waiting:
    rank: tuple[int, int]
    request: Request = field(compare=False)
    until: float = field(compare=False)


class Queue:
    """Requests without a place. Pure: time is an argument."""

    def __init__(self, max_queue: int, queue_timeout: float) -> None:
        self._max_queue = max_queue
        self._queue_timeout = queue_timeout
        self._waiting: list[_Waiting] = []
        self._arrivals = 0
        self._setbacks = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def push(self, request: Request, now: float) -> float:
        """A new request; returns when its waiting ends.

        Raises Overloaded when the queue is full: better told now than made to wait.
        """
        if len(self._waiting) >= self._max_queue:
            raise Overloaded("the queue is full", retry_after=RETRY_AFTER_SECONDS)
        self._arrivals += 1
        return self._insert(request, self._arrivals, now + self._queue_timeout)

    def push_back(self, request: Request, now: float, until: float | None) -> float:
        """One that had a place and lost it: ahead of all of its priority, and never refused for want of room.

        `until` is when its waiting ends, if it has waited before and nobody has begun it since.
        """
        self._setbacks += 1
        return self._insert(request, self._setbacks - _SETBACKS_FIRST, until or now + self._queue_timeout)

    def head(self) -> Request | None:
        """Who is next."""
        return self._waiting[0].request if self._waiting else None

    def pop(self) -> Request:
        return self._waiting.pop(0).request

    def remove(self, key: RequestKey) -> bool:
        """The client left while waiting."""
        kept = [waiting for waiting in self._waiting if waiting.request.key != key]
        was_there = len(kept) < len(self._waiting)
        self._waiting = kept
        return was_there

    def expired(self, now: float) -> list[tuple[Request, DiptychError]]:
        """Takes out those whose time is up, each with what to tell it."""
        late = [waiting for waiting in self._waiting if waiting.until <= now]
        self._waiting = [waiting for waiting in self._waiting if waiting.until > now]
        return [(waiting.request, _verdict(waiting.request, now)) for waiting in late]

    def next_expiry(self) -> float | None:
        """When `expired` has something to say, if nothing else happens."""
        return min((waiting.until for waiting in self._waiting), default=None)

    def _insert(self, request: Request, arrival: int, until: float) -> float:
        if request.deadline is not None:
            until = min(until, request.deadline)
        insort(self._waiting, _Waiting((-request.priority, arrival), request, until))
        return until


def _verdict(request: Request, now: float) -> DiptychError:
    if request.deadline is not None and request.deadline <= now:
        return DeadlinePassed("the deadline passed while the request was queued")
    return QueueTimeout("no place came free in time", retry_after=RETRY_AFTER_SECONDS)
