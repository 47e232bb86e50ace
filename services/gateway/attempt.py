"""One attempt at a request as the gateway follows it: what has arrived and was not yet looked at. Knows no text."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from services.core.errors import InternalError
from services.core.request import Request
from services.pb import session_pb2
from services.runtime.session import Session


@dataclass(frozen=True, slots=True)
class Arrival:
    """An event and when it came, on the monotonic clock."""

    event: session_pb2.Event
    at: float


class Attempt:
    """The inbox of one attempt. A slow client fills only its own: it holds at most `max_tokens` ids."""

    def __init__(self, request: Request, session: Session[session_pb2.Down], forget: Callable[[], None]) -> None:
        self.key = request.key
        self.session = session
        self._forget = forget
        self._room = request.stopping.max_tokens - len(request.emitted)
        self._arrivals: list[Arrival] = []
        self._wake = asyncio.Event()
        self._is_lost = False
        self._is_over = False

    def push(self, event: session_pb2.Event, now: float) -> None:
        """An event has come. What overflows the inbox is a fault of the scheduler's and ends the attempt."""
        if self._is_over:
            return
        self._room -= len(event.tokens.ids)
        if self._room < 0:
            failed = session_pb2.Failed(reason=InternalError.__name__, message="more tokens than were asked for")
            event = session_pb2.Event(request_id=self.key.request_id, attempt=self.key.attempt, failed=failed)
            self.cancel()
        self._is_over = self._is_over or event.WhichOneof("kind") != "tokens"
        self._arrivals.append(Arrival(event, now))
        self._wake.set()

    def lose(self) -> None:
        """The session is gone: nothing more will come."""
        self._is_lost = not self._is_over
        self._is_over = True
        self._wake.set()

    async def arrivals(self) -> list[Arrival]:
        """Waits for at least one; none means that the session is gone and all were taken."""
        await self._wake.wait()
        arrivals, self._arrivals = self._arrivals, []
        if not self._is_lost:
            self._wake.clear()
        return arrivals

    def finish(self, index: int) -> None:
        """Tells the scheduler that a stop string ended at token `index`."""
        if not self._is_over and self.session.is_open:
            finish = session_pb2.Finish(request_id=self.key.request_id, attempt=self.key.attempt, index=index)
            self.session.send(session_pb2.Down(finish=finish))

    def cancel(self) -> None:
        """Drops the request at the scheduler, unless it has ended there."""
        if not self._is_over and self.session.is_open:
            cancel = session_pb2.Cancel(request_id=self.key.request_id, attempt=self.key.attempt)
            self.session.send(session_pb2.Down(cancel=cancel))
        self._is_over = True

    def __enter__(self) -> "Attempt":
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()
        self._forget()
