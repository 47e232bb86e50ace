"""A worker's sessions with the kvstores, and who on the worker hears what they say.

Whoever is party to a hand-over listens under its key; when the session it speaks on ends, it hears that it is lost.
A session counts as live once it is known whether the store's arena can be mapped here.
Bulk bytes go on a channel of their own, so that they never stand before a claim or a release.
"""

import asyncio
from typing import Protocol, Self

import grpc.aio

from services.core.errors import WorkerLost
from services.core.ids import RequestKey
from services.pb import kvstore_pb2, kvstore_pb2_grpc
from services.runtime import codec, dial
from services.runtime.session import Session, Terms
from services.runtime.session_pool import SessionPool

StoreSession = Session[kvstore_pb2.StoreDown]

CONNECT_SECONDS = 0.5
"""How long a hand-over waits for the first session with a store, or for a writer, that is not there; after that its KV
is computed rather than moved. One that needs a store whose session was lost does not wait."""


class Listener(Protocol):
    """One end of a hand-over. Both are called on the loop thread and return at once."""

    def heard(self, message: kvstore_pb2.StoreUp, now: float) -> None:
        """Wanted, Available or Closed."""

    def lost(self) -> None:
        """The session ended; the store lets go of everything."""


class Ground(Protocol):
    """What may be mapped here of the stores that there are sessions with."""

    async def attach(self, session: StoreSession, said: kvstore_pb2.Arena) -> None:
        """Returns when it is known whether the store's blocks can be reached without it."""

    def detach(self, session: StoreSession) -> None:
        """The session has ended."""


class StoreLinks:
    """Sessions by address. An async context manager."""

    def __init__(self, terms: Terms, token: str, ground: Ground, patience: float = CONNECT_SECONDS) -> None:
        self.patience = patience
        self._ground = ground
        self.incarnation = terms.hello.incarnation
        self.token = token
        self._pool: SessionPool[kvstore_pb2.StoreDown, kvstore_pb2.StoreUp] = SessionPool(
            kvstore_pb2.StoreDown, _opener, self, terms, token
        )
        self._live: dict[str, StoreSession] = {}
        self._arrivals: dict[str, asyncio.Event] = {}
        """Set while the session to the address is live."""
        self._lost: set[str] = set()
        """Addresses whose session has ended and is not back."""
        self._attaching: set[asyncio.Task[None]] = set()
        self._listeners: dict[tuple[StoreSession, RequestKey], list[Listener]] = {}
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def __aenter__(self) -> Self:
        await self._pool.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.__aexit__()
        await asyncio.gather(*self._attaching)
        for address in tuple(self._channels):
            await self._channels.pop(address).close()

    def ensure(self, address: str) -> None:
        """Keeps a session to the store at `address` from now on."""
        self._pool.ensure(address)

    async def drop(self, address: str) -> None:
        """The store at `address` is gone for good."""
        self._pool.drop(address)
        self._lost.discard(address)
        if channel := self._channels.pop(address, None):
            await channel.close()

    async def connected(self, address: str) -> StoreSession:
        """The live session to `address`, once there is one.

        Raises WorkerLost at once if it was lost and is not back, and if there is none for too long.
        """
        self.ensure(address)
        if address in self._lost:
            raise WorkerLost("the session with the kvstore is lost")
        try:
            async with asyncio.timeout(self.patience):
                while address not in self._live:
                    await self._arrival(address).wait()
        except TimeoutError:
            raise WorkerLost("the kvstore is not there") from None
        return self._live[address]

    async def live(self, address: str) -> StoreSession:
        """The live session to `address`. Raises WorkerLost at once if there is none; then one is dialled."""
        self.ensure(address)
        if (session := self._live.get(address)) is None:
            raise WorkerLost("there is no session with the kvstore")
        return session

    def bulk(self, address: str) -> "kvstore_pb2_grpc.KVStoreAsyncStub":
        """For puts."""
        return kvstore_pb2_grpc.KVStoreStub(self._channel(address))

    def pull(self, address: str) -> "grpc.aio.StreamStreamMultiCallable[kvstore_pb2.PullDown, bytes]":
        """For gets: the parts come as they are on the wire."""
        encode = kvstore_pb2.PullDown.SerializeToString
        return self._channel(address).stream_stream("/diptych.internal.KVStore/Pull", request_serializer=encode)

    def listen(self, session: StoreSession, key: RequestKey, listener: Listener) -> None:
        """From now on `listener` hears what `session` says of `key`."""
        self._listeners.setdefault((session, key), []).append(listener)

    def unlisten(self, session: StoreSession, key: RequestKey, listener: Listener) -> None:
        listeners = self._listeners.get((session, key), [])
        if listener in listeners:
            listeners.remove(listener)
        if not listeners:
            self._listeners.pop((session, key), None)

    def absent(self) -> list[str]:
        """Addresses that are dialled and do not answer."""
        return [address for address in self._pool.addresses() if address not in self._live]

    def peers(self) -> list[str]:
        """Names of the stores there is a session with."""
        return sorted(session.peer.name for session in self._live.values())

    def stores(self) -> list[str]:
        """Addresses of the stores there is a session with."""
        return sorted(self._live)

    # --- what the pool tells

    def opened(self, session: StoreSession) -> None:
        """What it may be used for, it says next."""

    def received(self, session: StoreSession, message: kvstore_pb2.StoreUp, now: float) -> None:
        match message.WhichOneof("kind"):
            case "arena":
                work = self._attach(session, message.arena)
                task = asyncio.create_task(work, name=f"attach-{session.address}")
                # Never cancelled: what it maps would be left.
                self._attaching.add(task)
                task.add_done_callback(self._attaching.discard)
                return
            case "wanted":
                key = codec.key_from_pb(message.wanted.handoff)
            case "available":
                key = codec.key_from_pb(message.available.handoff)
            case "closed":
                key = codec.key_from_pb(message.closed.handoff)
            case "lent":
                key = codec.key_from_pb(message.lent.loan)
            case _:
                return
        for listener in tuple(self._listeners.get((session, key), ())):
            listener.heard(message, now)

    def closed(self, session: StoreSession) -> None:
        if self._live.get(session.address) is session:
            del self._live[session.address]
            self._arrival(session.address).clear()
            self._lost.add(session.address)
        for other, key in tuple(self._listeners):
            if other is session:
                for listener in tuple(self._listeners[other, key]):
                    listener.lost()
        self._ground.detach(session)

    # --- private

    async def _attach(self, session: StoreSession, said: kvstore_pb2.Arena) -> None:
        await self._ground.attach(session, said)
        if session.is_open:
            self._live[session.address] = session
            self._lost.discard(session.address)
            self._arrival(session.address).set()

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = dial.channel(address)
        return self._channels[address]

    def _arrival(self, address: str) -> asyncio.Event:
        return self._arrivals.setdefault(address, asyncio.Event())


def _opener(
    channel: grpc.aio.Channel,
) -> "grpc.aio.StreamStreamMultiCallable[kvstore_pb2.StoreDown, kvstore_pb2.StoreUp]":
    return kvstore_pb2_grpc.KVStoreStub(channel).Open
