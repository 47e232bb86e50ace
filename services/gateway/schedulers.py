"""The schedulers there are and the sessions to them. Knows requests as messages, and nothing of text.

Found by announcements on the bus and by static addresses; a live session outranks both.
"""

import asyncio
import hashlib
import time
from collections.abc import Collection, Iterable
from typing import Self

from services.core.errors import KVIncompatible, NoWorkers, WorkerLost
from services.core.ids import RequestId, RequestKey
from services.core.request import Request
from services.gateway.attempt import Attempt
from services.pb import operations_pb2, session_pb2, session_pb2_grpc
from services.runtime.bus import Bus
from services.runtime.codec import key_from_pb, start_to_pb
from services.runtime.directory import Directory
from services.runtime.session import Session, Terms
from services.runtime.session_pool import SessionPool

RETRY_SECONDS = 1.0
Link = Session[session_pb2.Down]


class Schedulers:
    """Sessions to all schedulers. Make it before the bus is entered; an async context manager."""

    def __init__(self, bus: Bus, static: Collection[str], terms: Terms, token: str) -> None:
        self._static = frozenset(static)
        self._fingerprint = terms.hello.fingerprint
        self._attempts: dict[RequestKey, Attempt] = {}
        self._draining: set[str] = set()
        self._directory = Directory(bus, ("scheduler",), self._heard)
        self._pool: SessionPool[session_pb2.Down, session_pb2.Up] = SessionPool(
            session_pb2.Down, lambda channel: session_pb2_grpc.SessionStub(channel).Open, self, terms, token
        )
        self.reachable = asyncio.Event()
        """Set while there is a live session."""
        self._arrived = asyncio.Event()
        """Set for a moment at each new session."""

    async def __aenter__(self) -> Self:
        await self._pool.__aenter__()
        for address in self._static:
            self._pool.ensure(address)
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._pool.__aexit__(*raised)

    async def found(self, request_id: RequestId, left: Collection[str], lost: Collection[str], wait: float) -> Link:
        """A session for the request, to no incarnation that has `left`, and to one that was `lost` only if need be.

        Waits up to `wait` seconds for one to come. Raises NoWorkers.
        """
        try:
            async with asyncio.timeout(wait):
                while (session := self._pick(request_id, left, lost)) is None:
                    await self._arrived.wait()
        except TimeoutError:
            raise NoWorkers("no scheduler is reachable", retry_after=RETRY_SECONDS) from None
        return session

    def start(self, request: Request, traceparent: str, session: Link) -> Attempt:
        """Sends the request to a scheduler. Use as a context manager."""
        attempt = Attempt(request, session, lambda: self._forget(request.key))
        self._attempts[request.key] = attempt
        try:
            session.send(session_pb2.Down(start=start_to_pb(request, time.monotonic(), traceparent)))
        except WorkerLost:
            attempt.lose()
        return attempt

    def names(self) -> list[str]:
        """Schedulers with a live session."""
        return [session.peer.name for session in self._pool.sessions()]

    def holdings(self) -> list[operations_pb2.Holding]:
        """The sessions, for Audit."""
        now = time.monotonic()
        return [
            operations_pb2.Holding(
                kind="session",
                state=s.peer.name,
                count=1,
                age_seconds=now - s.opened_at,
                owner=s.owner,
                last_heard_seconds=now - s.heard_at,
            )
            for s in self._pool.sessions()
        ]

    # Receiver: called by the sessions.
    def opened(self, session: Link) -> None:
        if session.peer.fingerprint and session.peer.fingerprint != self._fingerprint:
            raise KVIncompatible("the scheduler serves another model")
        self.reachable.set()
        self._arrived.set()
        self._arrived.clear()

    def received(self, session: Link, message: session_pb2.Up, now: float) -> None:
        for event in message.events.events:
            attempt = self._attempts.get(key_from_pb(event))
            # Events of an older attempt, or from a session that an attempt does not run on, find nothing.
            if attempt is not None and attempt.session is session:
                attempt.push(event, now)

    def closed(self, session: Link) -> None:
        for attempt in list(self._attempts.values()):
            if attempt.session is session:
                attempt.lose()
        if not self._pool.sessions():
            self.reachable.clear()

    def _pick(self, request_id: RequestId, left: Collection[str], lost: Collection[str]) -> Link | None:
        """By rendezvous hashing: even, and the same for the same id as long as the same schedulers live."""

        def merit(session: Link) -> tuple[bool, bool, bytes]:
            incarnation = session.peer.incarnation
            return session.address not in self._draining, incarnation not in lost, _weight(request_id, incarnation)

        candidates = [session for session in self._pool.sessions() if session.peer.incarnation not in left]
        return max(candidates, key=merit, default=None)

    def _forget(self, key: RequestKey) -> None:
        self._attempts.pop(key, None)

    def _heard(self, announcement: operations_pb2.Announcement, _: str) -> None:
        address = announcement.address
        if announcement.is_draining:
            self._draining.add(address)
        else:
            self._draining.discard(address)
            self._pool.ensure(address)
        self._directory.forget_silent()
        self._drop_absent(announced.address for announced in self._directory.present("scheduler"))

    def _drop_absent(self, announced: Iterable[str]) -> None:
        """Stops dialling addresses that nobody speaks for and that do not answer."""
        wanted = self._static.union(announced)
        for address in self._pool.addresses():
            if address not in wanted and self._pool.session(address) is None:
                self._pool.drop(address)
                self._draining.discard(address)


def _weight(request_id: str, incarnation: str) -> bytes:
    return hashlib.blake2b(f"{request_id}/{incarnation}".encode(), digest_size=8).digest()
