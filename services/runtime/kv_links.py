"""A worker's sessions with the kvstores, and who on the worker hears what they say.

Whoever is party to a hand-over listens under its key; when the session it speaks on ends, it hears that it is lost.
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

CONNECT_SECONDS = 2.0
"""How long a hand-over waits for a store, or for a writer, that is not there; after that its KV is computed rather
than moved."""


class Listener(Protocol):
    """One end of a hand-over. Both are called on the loop thread and return at once."""

    def heard(self, message: kvstore_pb2.StoreUp, now: float) -> None:
        """Wanted, Available or Closed."""

    def lost(self) -> None:
        """The session ended; the store lets go of everything."""


class StoreLinks:
    """Sessions by address. An async context manager."""

    def __init__(self, terms: Terms, token: str, patience: float = CONNECT_SECONDS) -> None:
        self.patience = patience
        self.incarnation = terms.hello.incarnation
        self.token = token
        self._pool: SessionPool[kvstore_pb2.StoreDown, kvstore_pb2.StoreUp] = SessionPool(
            kvstore_pb2.StoreDown, _opener, self, terms, token
        )
        self._live: dict[str, StoreSession] = {}
        self._arrivals: dict[str, asyncio.Event] = {}
        """Set while the session to the address is live."""
        self._listeners: dict[tuple[StoreSession, RequestKey], list[Listener]] = {}
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def __aenter__(self) -> Self:
        await self._pool.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.__aexit__()
        for address in tuple(self._channels):
            await self._channels.pop(address).close()

    def ensure(self, address: str) -> None:
        """Keeps a session to the store at `address` from now on."""
        self._pool.ensure(address)

    async def drop(self, address: str) -> None:
        """The store at `address` is gone for good."""
        self._pool.drop(address)
        if channel := self._channels.pop(address, None):
            await channel.close()

    async def connected(self, address: str) -> StoreSession:
        """The live session to `address`, once there is one. Raises WorkerLost if there is none for too long."""
        self.ensure(address)
        try:
            async with asyncio.timeout(self.patience):
                while address not in self._live:
                    await self._arrival(address).wait()
        except TimeoutError:
            raise WorkerLost("the kvstore is not there") from None
        return self._live[address]

    def bulk(self, address: str) -> "kvstore_pb2_grpc.KVStoreAsyncStub":
        """For puts and gets."""
        if address not in self._channels:
            self._channels[address] = dial.channel(address)
        return kvstore_pb2_grpc.KVStoreStub(self._channels[address])

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

    # --- what the pool tells

    def opened(self, session: StoreSession) -> None:
        self._live[session.address] = session
        self._arrival(session.address).set()

    def received(self, session: StoreSession, message: kvstore_pb2.StoreUp, now: float) -> None:
        match message.WhichOneof("kind"):
            case "wanted":
                key = codec.key_from_pb(message.wanted.handoff)
            case "available":
                key = codec.key_from_pb(message.available.handoff)
            case "closed":
                key = codec.key_from_pb(message.closed.handoff)
            case _:
                return
        for listener in tuple(self._listeners.get((session, key), ())):
            listener.heard(message, now)

    def closed(self, session: StoreSession) -> None:
        if self._live.get(session.address) is session:
            del self._live[session.address]
            self._arrival(session.address).clear()
        for other, key in tuple(self._listeners):
            if other is session:
                for listener in tuple(self._listeners[other, key]):
                    listener.lost()

    # --- private

    def _arrival(self, address: str) -> asyncio.Event:
        return self._arrivals.setdefault(address, asyncio.Event())


def _opener(
    channel: grpc.aio.Channel,
) -> "grpc.aio.StreamStreamMultiCallable[kvstore_pb2.StoreDown, kvstore_pb2.StoreUp]":
    return kvstore_pb2_grpc.KVStoreStub(channel).Open
