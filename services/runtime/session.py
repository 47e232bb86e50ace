"""Sessions: long-lived bidirectional streams that carry many requests.

One reader task and one writer task own a session for life; nothing else awaits its `read()` or `write()`. Receivers are
told synchronously and only dispatch into per-request state, so a slow request never holds up the others. The outbox is
bounded, and in order, so that a Cancel never overtakes its Start; only ticks go ahead. Silence for `timeout` seconds
ends the session.

    opened(session)  ->  received(session, message, now) ...  ->  closed(session)      exactly once each, in this order
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import grpc
import grpc.aio

from services.core.errors import KVIncompatible, WorkerLost
from services.core.fault_plan import Detour
from services.pb import kvstore_pb2, session_pb2
from services.runtime.faults import Faults

log = logging.getLogger(__name__)

PROTOCOL = 2
TICK_SECONDS = 0.5
OUTBOX_LIMIT = 8192

InT = TypeVar("InT", session_pb2.Up, session_pb2.Down, kvstore_pb2.StoreUp, kvstore_pb2.StoreDown)
OutT = TypeVar("OutT", session_pb2.Up, session_pb2.Down, kvstore_pb2.StoreUp, kvstore_pb2.StoreDown)
In_contra = TypeVar("In_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Terms:
    """What one side brings to its sessions."""

    hello: session_pb2.Hello
    timeout: float
    faults: Faults = field(default_factory=lambda: Faults({}))
    seams: dict[str, str] = field(default_factory=dict)
    """Kind of message to the fault seam that it passes on its way out."""
    step: str = ""
    """The fault seam that every message passes when it is heard."""


class Session(Generic[OutT]):
    """One live session, as its owner sees it: somewhere to send to."""

    def __init__(self, out_type: type[OutT], terms: Terms, address: str) -> None:
        self.address = address
        """Where it was dialled; empty on the accepting side."""
        self.peer = session_pb2.Hello()
        self.opened_at = time.monotonic()
        self.heard_at = time.monotonic()
        self._out_type: type[OutT] = out_type
        self._terms = terms
        self._outbox: deque[OutT] = deque()
        self._detour: Detour[OutT] = Detour()
        self._wake = asyncio.Event()
        self._broken = asyncio.Event()
        self._has_greeted = asyncio.Event()
        self._was_opened = False
        self._ticks = 0

    @property
    def is_open(self) -> bool:
        return not self._broken.is_set()

    @property
    def owner(self) -> str:
        """The peer, as an audit names whoever something is held for."""
        return f"{self.peer.name}/{self.peer.incarnation}"

    def send(self, message: OutT) -> None:
        """Queues `message`. Never blocks; a peer that does not keep up loses the session."""
        if self._broken.is_set():
            raise WorkerLost("the session is closed")
        self._outbox.append(message)
        self._wake.set()
        if len(self._outbox) > OUTBOX_LIMIT:
            log.warning("session with %s does not keep up, closing it", self.peer.name or self.address)
            self.end()

    def end(self) -> None:
        """Ends the session; `closed` follows."""
        self._broken.set()

    async def run(
        self,
        read: Callable[[], Awaitable[InT | object]],
        write: Callable[[OutT], Awaitable[None]],
        receiver: "Receiver[OutT, InT]",
    ) -> None:
        """Exchanges hellos, then reads and writes until either side ends, fails or falls silent.

        The side that dials speaks first; the other answers only if it will have the peer, so that a session that is
        refused is never taken for a live one.
        """
        if self.address:
            await write(self._out_type(hello=self._terms.hello))
            self._has_greeted.set()
        tasks = [
            asyncio.create_task(self._read(read, receiver), name="session-read"),
            asyncio.create_task(self._write(write), name="session-write"),
            asyncio.create_task(self._watch(), name="session-watch"),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._broken.set()
            for task in tasks:
                task.cancel()
            # Before anything is awaited: a second cancellation must not keep the receiver from letting go.
            if self._was_opened:
                receiver.closed(self)
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        _raise_unexpected(outcomes)

    async def _read(self, read: Callable[[], Awaitable[InT | object]], receiver: "Receiver[OutT, InT]") -> None:
        first = await read()
        if not isinstance(first, _ENVELOPES) or first.WhichOneof("kind") != "hello":
            return
        if first.hello.protocol != PROTOCOL:
            raise KVIncompatible("the peer speaks another version of the session protocol")
        self.peer = first.hello
        self.heard_at = time.monotonic()
        receiver.opened(self)
        self._was_opened = True
        if not self._has_greeted.is_set():
            self._outbox.appendleft(self._out_type(hello=self._terms.hello))
            self._has_greeted.set()
        while True:
            message = await read()
            if not isinstance(message, _ENVELOPES):
                return
            self.heard_at = time.monotonic()
            if message.WhichOneof("kind") != "tick":
                await self._terms.faults.wait(self._terms.step)
                receiver.received(self, message, self.heard_at)  # type: ignore[arg-type]  # one of the four, by the stub

    async def _write(self, write: Callable[[OutT], Awaitable[None]]) -> None:
        await self._has_greeted.wait()
        while True:
            await self._until_due()
            while self._outbox:
                message = self._outbox.popleft()
                deed = await self._terms.faults.wait(self._terms.seams.get(str(message.WhichOneof("kind")), ""))
                for each in self._detour.after(message, deed):
                    await write(each)

    async def _until_due(self) -> None:
        """Returns when there is something to send; a tick goes out when there is not, twice a second."""
        if self._outbox:
            return
        self._wake.clear()
        try:
            async with asyncio.timeout(TICK_SECONDS):
                await self._wake.wait()
        except TimeoutError:
            self._ticks += 1
            self._outbox.appendleft(self._out_type(tick=session_pb2.Tick(sequence=self._ticks)))

    async def _watch(self) -> None:
        """Returns when the session is ended or the peer has been silent for too long."""
        while not self._broken.is_set():
            left = self.heard_at + self._terms.timeout - time.monotonic()
            if left <= 0:
                log.warning("session with %s is silent, closing it", self.peer.name or self.address)
                return
            try:
                async with asyncio.timeout(left):
                    await self._broken.wait()
            except TimeoutError:
                continue


class Receiver(Protocol[OutT, In_contra]):
    """The owner of sessions. All three are called on the loop thread and must return at once."""

    def opened(self, session: Session[OutT]) -> None:
        """The peer has said hello: `session.peer` is set. Raise a DiptychError to refuse it."""

    def received(self, session: Session[OutT], message: In_contra, now: float) -> None:
        """A message that is neither hello nor tick; `now` is its arrival on the monotonic clock."""

    def closed(self, session: Session[OutT]) -> None:
        """The session is over: everything started on it is cancelled by the side that holds the resources."""


_ENVELOPES = (session_pb2.Up, session_pb2.Down, kvstore_pb2.StoreUp, kvstore_pb2.StoreDown)


def _raise_unexpected(outcomes: list[BaseException | None]) -> None:
    """A peer that goes away is a legal event; anything else is a fault of ours or a refusal and must be seen."""
    for outcome in outcomes:
        if outcome is None or isinstance(outcome, asyncio.CancelledError | grpc.aio.AioRpcError | grpc.aio.UsageError):
            continue
        if isinstance(outcome, asyncio.InvalidStateError | grpc.aio.BaseError | grpc.aio.InternalError):
            continue
        raise outcome


@dataclass(frozen=True, slots=True)
class Acceptor(Generic[OutT, InT]):
    """The server's side: `Open` of a servicer is `await acceptor.accept(context)`."""

    out_type: type[OutT]
    terms: Terms
    receiver: Receiver[OutT, InT]

    async def accept(self, context: "grpc.aio.ServicerContext[InT, OutT]") -> None:
        session = Session(self.out_type, self.terms, "")
        await session.run(context.read, context.write, self.receiver)
