"""The workers' sessions with the store: their words to the exchange, its notices to them, and the shelf they share.

A session is the lease of all it claimed, offered and borrowed. Knows no policy: the exchange decides.
"""

import asyncio
import logging

from services.core.errors import InvalidRequest, KVIncompatible, StaleHandoff
from services.core.handoff import Party
from services.core.ids import BlockHash
from services.kvstore.arena import Arena
from services.kvstore.messages import hashes_from_pb, notice_to_pb, offer_from_pb, sealings_from_pb
from services.kvstore.notices import Notice, gathered
from services.kvstore.quarantine import QuarantineWatch
from services.kvstore.shelf import Shelf
from services.pb import kvstore_pb2
from services.runtime.codec import key_from_pb
from services.runtime.session import Session
from services.runtime.telemetry import Telemetry

log = logging.getLogger(__name__)

DownSession = Session[kvstore_pb2.StoreUp]


class Sessions:
    """Receiver of all sessions of one store."""

    def __init__(self, arena: Arena, telemetry: Telemetry) -> None:
        self._arena = arena
        self._telemetry = telemetry
        self._shelf: Shelf | None = None
        self._parties: dict[DownSession, Party] = {}
        self._sessions: dict[Party, DownSession] = {}
        self._silent: set[DownSession] = set()
        """Those that have said nothing yet."""
        self._quarantine = QuarantineWatch(arena.is_slot_held)
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def shelf(self) -> Shelf:
        """Raises StaleHandoff before the first session has brought a model and a format."""
        if self._shelf is None:
            raise StaleHandoff("no worker has a session with this store")
        return self._shelf

    def content(self) -> Shelf | None:
        """Of the last model and format that came, if any has."""
        return self._shelf

    def sessions(self) -> list[DownSession]:
        return list(self._parties)

    def session_of(self, party: Party) -> DownSession | None:
        """While it is live."""
        return self._sessions.get(party)

    # --- sessions

    def opened(self, session: DownSession) -> None:
        """Raises KVIncompatible, which refuses the session, where model or format differ from the others'."""
        incarnation = session.peer.incarnation
        for earlier, party in tuple(self._parties.items()):
            if incarnation and party.incarnation == incarnation:
                # The process has given it up, though nothing has been heard of that.
                self.closed(earlier)
                earlier.end()
        self._shelf = self._shelf_for(session)
        self._count += 1
        party = Party(self._count, incarnation)
        self._parties[session] = party
        self._sessions[party] = session
        self._silent.add(session)
        session.send(kvstore_pb2.StoreUp(arena=self._place(party)))

    def received(self, session: DownSession, message: kvstore_pb2.StoreDown, now: float) -> None:
        """A malformed message ends the session it came on."""
        party = self._parties.get(session)
        if party is None:
            return
        try:
            if message.WhichOneof("kind") == "attached":
                self._attach(session, message.attached)
            else:
                self._silent.discard(session)
                self.post(self._hear(party, message, now))
        except InvalidRequest as error:
            log.warning("closing the session with %s: %s", session.peer.name, error.message)
            session.end()

    def closed(self, session: DownSession) -> None:
        party = self._parties.pop(session, None)
        if party is None:
            return
        del self._sessions[party]
        self._silent.discard(session)
        self.post(self.shelf.exchange.lost(party))
        if party.is_near:
            self._quarantine.add(party)

    def post(self, notices: list[Notice]) -> None:
        """After every change: sends each notice on the session it is for. One that is ending needs to hear nothing."""
        for notice in gathered(notices):
            session = self._sessions.get(notice.to)
            if session is not None and session.is_open:
                session.send(notice_to_pb(notice))
        if self._shelf is not None and not self._shelf.exchange.is_idle:
            self._idle.clear()
        else:
            self._idle.set()

    async def idle(self) -> None:
        """Returns once nobody holds a hand-over or a loan."""
        await self._idle.wait()

    async def keep(self) -> None:
        """Frees the pages of lost writers when that is safe, for ever."""
        await self._quarantine.keep(self._hear_quiet)

    # --- private

    def _shelf_for(self, session: DownSession) -> Shelf:
        peer, shelf = session.peer, self._shelf
        if shelf is not None and (shelf.fingerprint, shelf.format) == (peer.fingerprint, peer.format):
            return shelf
        if self._parties:
            log.warning("refusing %s: its model or KV format is not that of the others", peer.name)
            raise KVIncompatible("model or KV format differ from those this store holds", field="format")
        for party in self._quarantine.look():
            self._hear_quiet(party)
        if not self._quarantine.is_empty:
            raise KVIncompatible("a worker of another model may still be writing here; try again", field="format")
        fresh = Shelf(peer.fingerprint, peer.format, self._arena)
        log.info("room for %d blocks of %s", fresh.exchange.index.capacity, peer.format)
        return fresh

    def _hear_quiet(self, party: Party) -> None:
        self.post(self.shelf.exchange.quiet(party))

    def _place(self, party: Party) -> kvstore_pb2.Arena:
        arena = self._arena
        return kvstore_pb2.Arena(
            path=str(arena.path), size=arena.size, stride=self.shelf.stride, nonce=arena.nonce, slot=party.number
        )

    def _attach(self, session: DownSession, attached: kvstore_pb2.Attached) -> None:
        if session not in self._silent or attached.nonce != self._arena.nonce:
            raise InvalidRequest("the session is past attaching, or the arena is another")
        self._silent.discard(session)
        old = self._parties[session]
        near = Party(old.number, old.incarnation, is_near=True)
        self._parties[session] = near

    def _hear(self, party: Party, message: kvstore_pb2.StoreDown, now: float) -> list[Notice]:
        exchange = self.shelf.exchange
        match message.WhichOneof("kind"):
            case "claim":
                return exchange.claim(party, key_from_pb(message.claim.handoff), now)
            case "offer":
                return exchange.offer(party, offer_from_pb(message.offer), now)
            case "want":
                return exchange.want(party, key_from_pb(message.want.handoff), hashes_from_pb(message.want.hashes))
            case "written":
                return self._written(party, message.written)
            case "doubt":
                return self._doubt(party, message.doubt)
            case "release":
                return exchange.release(party, key_from_pb(message.release.handoff))
            case "borrow":
                return exchange.borrow(party, key_from_pb(message.borrow.loan), hashes_from_pb(message.borrow.hashes))
            case "return_loan":
                return exchange.give_back(party, key_from_pb(message.return_loan.loan))
        raise InvalidRequest("the message is of no kind known here")

    def _written(self, party: Party, written: kvstore_pb2.Written) -> list[Notice]:
        key, exchange = key_from_pb(written.handoff), self.shelf.exchange
        given_up = [(BlockHash(each.hash), each.generation) for each in written.given_up]
        notices = exchange.given_up(party, key, given_up)
        if not written.blocks:
            return notices
        if not party.is_near:
            raise InvalidRequest("only a worker that has mapped the arena can write into it")
        size = len(written.blocks) * self.shelf.block_bytes
        with self._telemetry.phase("kvstore.put", written.traceparent, blocks=len(written.blocks), bytes=size):
            return notices + exchange.written(party, key, sealings_from_pb(written))

    def _doubt(self, party: Party, doubt: kvstore_pb2.Doubt) -> list[Notice]:
        exchange = self.shelf.exchange
        block = exchange.doubted(party, key_from_pb(doubt.handoff), BlockHash(doubt.hash), doubt.generation)
        if block is None or self.shelf.is_good(block):
            return []
        log.warning("a block does not match its checksum any more, it is dropped")
        return exchange.found_bad(block)
