"""The workers' sessions with the store: their words to the exchange, its notices to them, and the shelf they share.

A session is the lease of all it claimed and offered. Knows no policy: the exchange decides.
"""

import asyncio
import logging
import time

from services.core.errors import InvalidRequest, KVIncompatible, StaleHandoff
from services.core.handoff import Party
from services.core.ids import BlockHash
from services.kvstore.exchange import Offer
from services.kvstore.notices import Available, Closed, Notice, Wanted
from services.kvstore.shelf import Shelf
from services.pb import kvstore_pb2, operations_pb2
from services.runtime.codec import handoff_to_pb, key_from_pb
from services.runtime.session import Session

log = logging.getLogger(__name__)

DownSession = Session[kvstore_pb2.StoreUp]

MAX_HASH_BYTES = 64


class Sessions:
    """Receiver of all sessions of one store."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._shelf: Shelf | None = None
        self._parties: dict[DownSession, Party] = {}
        self._sessions: dict[Party, DownSession] = {}
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def shelf(self) -> Shelf:
        """Raises StaleHandoff before the first session has brought a model and a format."""
        if self._shelf is None:
            raise StaleHandoff("no worker has a session with this store")
        return self._shelf

    # --- sessions

    def opened(self, session: DownSession) -> None:
        """Raises KVIncompatible, which refuses the session, where model or format differ from the others'."""
        self._shelf = self._shelf_for(session)
        self._count += 1
        party = Party(self._count, session.peer.incarnation)
        self._parties[session] = party
        self._sessions[party] = session

    def received(self, session: DownSession, message: kvstore_pb2.StoreDown, now: float) -> None:
        """A malformed message ends the session it came on."""
        party = self._parties[session]
        try:
            self.post(self._hear(party, message, now))
        except InvalidRequest as error:
            log.warning("closing the session with %s: %s", session.peer.name, error.message)
            session.end()

    def closed(self, session: DownSession) -> None:
        party = self._parties.pop(session)
        del self._sessions[party]
        self.post(self.shelf.exchange.lost(party))

    def post(self, notices: list[Notice]) -> None:
        """After every change: sends each notice on the session it is for. One that is ending needs to hear nothing."""
        for notice in notices:
            session = self._sessions.get(notice.to)
            if session is not None and session.is_open:
                session.send(_message(notice))
        if self._shelf is not None and self._shelf.exchange.live():
            self._idle.clear()
        else:
            self._idle.set()

    async def idle(self) -> None:
        """Returns once no hand-over is held."""
        await self._idle.wait()

    # --- views

    def holdings(self) -> list[operations_pb2.Holding]:
        """Sessions, and what each hand-over holds."""
        now = time.monotonic()
        held = [
            operations_pb2.Holding(kind="session", state=s.peer.name, age_seconds=now - s.opened_at, count=1)
            for s in self._parties
        ]
        if self._shelf is None:
            return held
        for record in self._shelf.exchange.live():
            handoff = record.handoff
            counts = {"handoff": 1, "pins": len(record.sealed), "awaited": len(record.blocks) - len(record.sealed)}
            held += [
                operations_pb2.Holding(
                    kind=kind,
                    request_id=handoff.key.request_id,
                    attempt=handoff.key.attempt,
                    age_seconds=now - handoff.since,
                    count=count,
                    state=handoff.state.value,
                )
                for kind, count in counts.items()
                if count
            ]
        return held

    def load(self) -> operations_pb2.Load:
        if self._shelf is None:
            return operations_pb2.Load(blocks_total=self._capacity)
        index = self._shelf.exchange.index
        return operations_pb2.Load(
            blocks_total=index.capacity, blocks_used=index.num_used, blocks_cached=index.num_cached
        )

    def peers(self) -> list[str]:
        """Names of the processes there is a session with."""
        return sorted({session.peer.name for session in self._parties})

    # --- private

    def _shelf_for(self, session: DownSession) -> Shelf:
        peer, shelf = session.peer, self._shelf
        if shelf is not None and (shelf.fingerprint, shelf.format) == (peer.fingerprint, peer.format):
            return shelf
        if self._parties:
            log.warning("refusing %s: its model or KV format is not that of the others", peer.name)
            raise KVIncompatible("model or KV format differ from those this store holds", field="format")
        log.info("holding %d blocks of %s", self._capacity, peer.format)
        return Shelf(peer.fingerprint, peer.format, self._capacity)

    def _hear(self, party: Party, message: kvstore_pb2.StoreDown, now: float) -> list[Notice]:
        exchange = self.shelf.exchange
        match message.WhichOneof("kind"):
            case "claim":
                return exchange.claim(party, key_from_pb(message.claim.handoff), now)
            case "offer":
                return exchange.offer(party, _offer(message.offer), now)
            case "release":
                return exchange.release(party, key_from_pb(message.release.handoff))
        raise InvalidRequest("the message is of no kind known here")


def _offer(offer: kvstore_pb2.Offer) -> Offer:
    if not all(0 < len(raw) <= MAX_HASH_BYTES for raw in offer.hashes):
        raise InvalidRequest("a hash is empty or too long", field="hashes")
    hashes = [BlockHash(raw) for raw in offer.hashes]
    return Offer(key_from_pb(offer.handoff), offer.first_index, hashes, offer.complete)


def _message(notice: Notice) -> kvstore_pb2.StoreUp:
    handoff = handoff_to_pb(notice.key)
    match notice:
        case Wanted():
            return kvstore_pb2.StoreUp(wanted=kvstore_pb2.Wanted(handoff=handoff, hashes=notice.hashes))
        case Available():
            blocks = [kvstore_pb2.BlockRef(index=index, hash=block_hash) for index, block_hash in notice.blocks]
            available = kvstore_pb2.Available(handoff=handoff, blocks=blocks, complete=notice.is_complete)
            return kvstore_pb2.StoreUp(available=available)
        case Closed():
            closed = kvstore_pb2.Closed(handoff=handoff, reason=notice.error.reason, message=notice.error.message)
            return kvstore_pb2.StoreUp(closed=closed)
