"""Hand-overs over the block index: takes what parties say and what became of puts, returns what to tell whom.

Every verb is legal at any time. Pure and single-threaded; time is an argument. Knows neither bytes nor messages.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from services.core.errors import KVMissing, StaleHandoff
from services.core.handoff import LIVE, WRITABLE, Effect, Fact, Handoff, Party, State
from services.core.ids import BlockHash, RequestKey
from services.kvstore.block_index import Answer, Block, BlockIndex
from services.kvstore.notices import Closed, Notice, Wanted
from services.kvstore.record import Record

REMEMBERED = 4096
"""Ended hand-overs that are known as such; an older one that comes back finds no writer and ends with its request."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Blocks a writer has: consecutive ones of a prompt, the first at `first_index`."""

    key: RequestKey
    first_index: int
    hashes: Sequence[BlockHash]
    is_complete: bool = False


class Exchange:
    """All hand-overs of one store."""

    def __init__(self, index: BlockIndex) -> None:
        self.index = index
        self._live: dict[RequestKey, Record] = {}
        self._past: OrderedDict[RequestKey, Record] = OrderedDict()

    # --- what parties say

    def claim(self, party: Party, key: RequestKey, now: float) -> list[Notice]:
        """`party` will read this hand-over; its session is the lease."""
        record = self._record(key, now)
        return self._follow(record, record.handoff.claim(party), party)

    def offer(self, party: Party, offer: Offer, now: float) -> list[Notice]:
        """`party` has blocks for this hand-over."""
        record = self._record(offer.key, now)
        effects = record.handoff.offer(party)
        notices = self._follow(record, effects, party)
        if Effect.REFUSE in effects:
            return notices
        record.is_complete |= offer.is_complete
        return notices + self._take(record, party, offer)

    def release(self, party: Party, key: RequestKey) -> list[Notice]:
        """`party` is done with this hand-over, or gives it up."""
        record = self._live.get(key)
        return self._leave(record, party) if record else []

    def lost(self, party: Party) -> list[Notice]:
        """The session of `party` ended: everything it holds is let go."""
        return [notice for record in list(self._live.values()) for notice in self._leave(record, party)]

    # --- what becomes of puts

    def begin(self, key: RequestKey, incarnation: str, block_hash: BlockHash) -> Block:
        """The writer's bytes of a block arrive; the answer names the page to fill.

        Raises StaleHandoff unless they are awaited from this process, Overloaded if no page is free.
        """
        record = self._live.get(key)
        if record is None or record.handoff.state not in WRITABLE or block_hash not in record.blocks:
            raise StaleHandoff("this hand-over takes no such block")
        if record.handoff.writer is None or record.handoff.writer.incarnation != incarnation:
            raise StaleHandoff("this hand-over has another writer")
        return self.index.begin(block_hash, key)

    def seal(self, block: Block, checksum: int) -> list[Notice]:
        """All bytes of the block are there and match. Raises StaleHandoff if it was given up meanwhile."""
        writer = block.writer
        notices: list[Notice] = []
        for key in self.index.seal(block, checksum):
            record = self._live[key]
            record.add_sealed(block.hash)
            if key != writer:
                notices += record.there_already((block.hash,))
            notices += self._follow(record, record.handoff.hear(Fact.SEALED)) + self._settle(record)
        return notices

    def give_up(self, key: RequestKey, block_hash: BlockHash) -> list[Notice]:
        """A put failed: the block will not come from this hand-over. Nothing if it is sealed or was given up."""
        record = self._live.get(key)
        if record is None or block_hash in record.sealed or block_hash not in record.blocks:
            return []
        return self._withdraw(record, (block_hash,)) + self._settle(record)

    # --- reading

    def readable(self, key: RequestKey, incarnation: str, block_hash: BlockHash) -> Block:
        """A block to read from, valid until the next await.

        Raises StaleHandoff unless this process is the reader, KVMissing if the block is not part of the hand-over.
        """
        record = self._live.get(key)
        if record is None or record.handoff.reader is None or record.handoff.reader.incarnation != incarnation:
            raise StaleHandoff("this hand-over is not yours, or is closed")
        block = self.index.pinned(block_hash, key)
        if block is None:
            raise KVMissing("the hand-over has no such sealed block")
        return block

    def live(self) -> Collection[Record]:
        """Hand-overs that somebody holds."""
        return self._live.values()

    def check_invariants(self) -> None:
        """AssertionError if the books do not balance."""
        self.index.check_invariants()
        assert len(self._past) <= REMEMBERED, "too much is remembered"
        pinned = 0
        for record in self._live.values():
            assert record.handoff.state in LIVE, "a hand-over that nobody holds is live"
            assert record.sealed <= set(record.blocks) and set(record.fresh) <= record.sealed, "a manifest is wrong"
            is_writable = record.handoff.state in WRITABLE
            assert is_writable or len(record.sealed) == len(record.blocks), "a block is awaited from nobody"
            assert all(self.index.pinned(block_hash, record.key) for block_hash in record.sealed), "a pin is missing"
            pinned += len(record.sealed)
        assert pinned == self.index.num_pins, "something is pinned for a hand-over that does not list it"
        for block in self.index.unsettled():
            for key in (block.writer, *block.line):
                assert block.hash in self._live[key].blocks, "a block is awaited from a hand-over that is gone"

    # --- private

    def _record(self, key: RequestKey, now: float) -> Record:
        return self._live.get(key) or self._past.get(key) or Record(Handoff(key, now))

    def _take(self, record: Record, party: Party, offer: Offer) -> list[Notice]:
        wanted, there = [], []
        for index, block_hash in enumerate(offer.hashes, start=offer.first_index):
            is_new = block_hash not in record.blocks
            record.blocks.setdefault(block_hash, index)
            answer = self.index.offer(block_hash, record.key)
            if answer is Answer.EXISTS:
                record.add_sealed(block_hash)
                there.append(block_hash)
            elif answer is Answer.WRITE and is_new:
                wanted.append(block_hash)
        notices: list[Notice] = [Wanted(party, record.key, tuple(wanted))] if wanted else []
        if there:
            notices += record.there_already(there) + self._follow(record, record.handoff.hear(Fact.SEALED))
        return notices + self._settle(record)

    def _settle(self, record: Record) -> list[Notice]:
        """Nothing is awaited any more: the reader hears so."""
        is_settled = record.is_complete and len(record.sealed) == len(record.blocks)
        if record.handoff.state not in WRITABLE or not is_settled:
            return []
        return self._follow(record, record.handoff.hear(Fact.COMPLETE))

    def _leave(self, record: Record, party: Party) -> list[Notice]:
        notices: list[Notice] = []
        for fact in record.handoff.facts_of_leaving(party):
            notices += self._follow(record, record.handoff.hear(fact))
        return notices

    def _follow(self, record: Record, effects: Iterable[Effect], party: Party | None = None) -> list[Notice]:
        notices: list[Notice] = []
        for effect in effects:
            notices += self._do(effect, record, party)
        self._file(record)
        return notices

    def _do(self, effect: Effect, record: Record, party: Party | None) -> list[Notice]:
        match effect:
            case Effect.REFUSE:
                error = StaleHandoff("the hand-over is closed, or its end is taken")
                return [Closed(party, record.key, error)] if party else []
            case Effect.TELL_READER:
                return record.news()
            case Effect.TELL_WRITER:
                error = StaleHandoff("the reader has left the hand-over")
                return [Closed(record.handoff.writer, record.key, error)] if record.handoff.writer else []
            case Effect.WITHDRAW:
                return self._withdraw(record, [each for each in record.blocks if each not in record.sealed])
            case Effect.UNPIN:
                # The tail first, so that of a long prefix the head is evicted last.
                for block_hash in reversed(record.blocks):
                    self.index.unpin(block_hash, record.key)
            case Effect.PIN_AGAIN:
                for block_hash in tuple(record.blocks):
                    if not self.index.pin(block_hash, record.key):
                        record.forget(block_hash)
        return []

    def _withdraw(self, record: Record, hashes: Iterable[BlockHash]) -> list[Notice]:
        notices: list[Notice] = []
        for block_hash in hashes:
            record.forget(block_hash)
            heir = self.index.withdraw(block_hash, record.key)
            writer = self._live[heir].handoff.writer if heir else None
            if heir and writer:
                notices.append(Wanted(writer, heir, (block_hash,)))
        return notices

    def _file(self, record: Record) -> None:
        """A hand-over is live while somebody holds it; afterwards it is remembered, the oldest not for ever."""
        if record.handoff.state in LIVE:
            self._past.pop(record.key, None)
            self._live[record.key] = record
            return
        self._live.pop(record.key, None)
        if record.handoff.state is State.CLOSED:
            record.blocks, record.sealed, record.fresh = {}, set(), []
        self._past[record.key] = record
        while len(self._past) > REMEMBERED:
            self._past.popitem(last=False)
