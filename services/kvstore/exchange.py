"""Hand-overs, cache and loans over the block index: takes what parties say, returns what to tell whom.

Every verb is legal at any time. A writer is *near* if it copies into the store's pages itself, and *far* if the store
copies what it sends; for a far one `begin`, `seal` and `give_up` stand where a near one says `written` and `given_up`.
Pure and single-threaded; time is an argument. Knows neither bytes nor messages.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from services.core.errors import KVMissing, Overloaded, StaleHandoff
from services.core.handoff import WRITABLE, Effect, Fact, Handoff, Holder, Party
from services.core.ids import BlockHash, RequestKey
from services.kvstore.block import Block, Stand
from services.kvstore.block_index import BlockIndex
from services.kvstore.caching import offer_for_cache
from services.kvstore.handoffs import Handoffs
from services.kvstore.loans import Loans
from services.kvstore.notices import Closed, Notice, Wanted
from services.kvstore.record import Record


@dataclass(frozen=True, slots=True)
class Offer:
    """Blocks a writer has: consecutive ones of a prompt, the first at `first_index`."""

    key: RequestKey
    first_index: int
    hashes: Sequence[BlockHash]
    is_complete: bool = False
    is_cache: bool = False
    """For no hand-over; the store takes what it has room for."""


class Sealing(NamedTuple):
    """A near writer's word that a block is in its page."""

    hash: BlockHash
    generation: int
    checksum: int


class Exchange:
    """All hand-overs and loans of one store."""

    def __init__(self, index: BlockIndex) -> None:
        self.index = index
        self.loans = Loans(index)
        self._handoffs = Handoffs(index)
        self._records = self._handoffs.records

    # --- what parties say of hand-overs

    def claim(self, party: Party, key: RequestKey, now: float) -> list[Notice]:
        """`party` will read this hand-over; its session is the lease."""
        record = self._records.get(key) or Record(Handoff(key, now))
        return self._handoffs.follow(record, record.handoff.claim(party), party)

    def offer(self, party: Party, offer: Offer, now: float) -> list[Notice]:
        """`party` has blocks, for a hand-over or for the cache."""
        if offer.is_cache:
            return offer_for_cache(self.index, party, offer.key, offer.hashes)
        record = self._records.get(offer.key) or Record(Handoff(offer.key, now))
        effects = record.handoff.offer(party)
        notices = self._handoffs.follow(record, effects, party)
        if Effect.REFUSE in effects:
            return notices
        record.is_complete |= offer.is_complete
        notices += self._handoffs.take(record, party, offer.first_index, offer.hashes)
        return notices + self._handoffs.serve()

    def want(self, party: Party, key: RequestKey, hashes: Iterable[BlockHash]) -> list[Notice]:
        """The reader lacks only these; the others are let go, and complete means complete for these."""
        record = self._records.get(key)
        if record is None:
            return [Closed(party, key, StaleHandoff("there is no such hand-over"))]
        effects = record.handoff.want(party)
        if Effect.REFUSE not in effects:
            record.wanted = frozenset(hashes)
        notices = self._handoffs.follow(record, effects, party)
        return notices + self._handoffs.settle(record) + self._handoffs.serve()

    def release(self, party: Party, key: RequestKey) -> list[Notice]:
        """`party` is done with this hand-over, or gives it up; none of the copies it was granted for it runs.

        Blocks it was granted for the cache are not meant: it may be the reader of a hand-over under the same key.
        """
        record = self._records.live.get(key)
        notices = self._handoffs.leave(record, party, is_lost=False) if record else []
        stand = Stand(Holder("handoff", key), party)
        for block in [each for each in self.index.lent() if each.writer == stand]:
            notices += self._handoffs.pass_on(block.hash, self.index.failed(block))
        return notices + self._handoffs.serve()

    def written(self, party: Party, key: RequestKey, blocks: Iterable[Sealing]) -> list[Notice]:
        """A near writer has copied these whole into their pages. What comes too late, or again, is refused."""
        sealed: list[Stand] = []
        notices: list[Notice] = []
        late: list[BlockHash] = []
        for sealing in blocks:
            block = self._lent_to(party, sealing.hash, sealing.generation)
            if block is None:
                late.append(sealing.hash)
            else:
                notices += self._seal(block, sealing.checksum, sealed)
        notices += self._sealed(sealed)
        return [*notices, Wanted(party, key, refused=tuple(late))] if late else notices

    def given_up(self, party: Party, key: RequestKey, blocks: Iterable[tuple[BlockHash, int]]) -> list[Notice]:
        """A near writer will not write these (hash, generation), and no copy into their pages runs."""
        lent = [self._lent_to(party, block_hash, generation) for block_hash, generation in blocks]
        return [notice for block in lent if block for notice in self.give_up(block)]

    def lost(self, party: Party) -> list[Notice]:
        """The session of `party` ended: everything it holds is let go, except pages it may be copying into.

        Nothing that `party` says may be delivered after this. With a process' new session its earlier ones are lost.
        """
        self.loans.lost(party)
        notices = [
            n for record in list(self._records.live.values()) for n in self._handoffs.leave(record, party, is_lost=True)
        ]
        for block in [each for each in self.index.lent() if each.writer.party == party]:
            notices += self._handoffs.pass_on(block.hash, self.index.lost(block))
        return notices + self._handoffs.serve()

    def quiet(self, party: Party) -> list[Notice]:
        """No copy runs that the process of `party` has begun on an earlier session than this one."""
        self.index.pages.quiet(party)
        return self._handoffs.serve()

    # --- what parties say of loans

    def borrow(self, party: Party, key: RequestKey, hashes: Sequence[BlockHash]) -> list[Notice]:
        """`party` would read the longest known beginning of `hashes`; answered by Lent, also when there is none."""
        return [self.loans.borrow(party, key, hashes)]

    def give_back(self, party: Party, key: RequestKey) -> list[Notice]:
        """None of the borrowed blocks is read any more."""
        self.loans.give_back(party, key)
        return self._handoffs.serve()

    # --- what the store copies itself

    def begin(self, key: RequestKey, incarnation: str, block_hash: BlockHash) -> Block:
        """A far writer's bytes of a block arrive; they go into its page for as long as it is in writing.

        Raises StaleHandoff unless they are awaited from this process, Overloaded if the block has no page.
        """
        record = self._records.live.get(key)
        block = self.index.find(block_hash)
        if block and block.is_in_writing and block.writer.is_far_process(key, incarnation):
            if block.writer.holder.kind == "cache" or (record and record.handoff.state in WRITABLE):
                return block
        elif record and block_hash in record.refused:
            raise Overloaded("every block of the store is in use")
        raise StaleHandoff("this block is not awaited from this process")

    def seal(self, block: Block, checksum: int) -> list[Notice]:
        """All bytes of the block are in its page. Raises StaleHandoff if it was given up meanwhile."""
        sealed: list[Stand] = []
        return self._seal(block, checksum, sealed) + self._sealed(sealed)

    def give_up(self, block: Block) -> list[Notice]:
        """The block will not come from its writer, and no copy runs. Nothing if it is settled already."""
        if not block.is_in_writing:
            return []
        others = self.index.failed(block)
        record = self._records.live.get(block.writer.holder.key)
        notices: list[Notice] = []
        if record and record.holder == block.writer.holder and block.hash in record.unsealed():
            notices += self._handoffs.fail(record, block.hash)
        return notices + self._handoffs.pass_on(block.hash, others) + self._handoffs.serve()

    # --- reading

    def readable(self, key: RequestKey, incarnation: str, block_hash: BlockHash, *, is_loan: bool = False) -> Block:
        """A block to read from, valid until the next await.

        Raises StaleHandoff unless this process is the reader, KVMissing if it is not pinned for this.
        """
        if is_loan:
            block = self.loans.readable(key, incarnation, block_hash)
        else:
            record = self._records.live.get(key)
            if record is None or record.handoff.reader is None or record.handoff.reader.incarnation != incarnation:
                raise StaleHandoff("this hand-over is not yours, or is closed")
            block = self.index.pinned(block_hash, record.holder)
        if block is None:
            raise KVMissing("there is no such sealed block")
        return block

    def doubted(self, party: Party, key: RequestKey, block_hash: BlockHash, generation: int) -> Block | None:
        """The block whose copy does not match for `party`, so that its page can be looked at; None if it is not kept
        for it, or is another life of it."""
        record = self._records.live.get(key)
        block = self.loans.pinned(party, key, block_hash)
        if block is None and record and record.handoff.reader == party:
            block = self.index.pinned(block_hash, record.holder)
        return block if block and block.grant.generation == generation else None

    def found_bad(self, block: Block) -> list[Notice]:
        """The page of a sealed block does not match its checksum: nobody new gets it, all who have it are told."""
        notices: list[Notice] = []
        for holder in self.index.found_bad(block):
            if holder.kind == "handoff":
                notices += self._handoffs.fail(self._records.live[holder.key], block.hash)
        return notices + self._handoffs.serve()

    # --- views

    @property
    def is_idle(self) -> bool:
        """Nobody holds a hand-over or a loan."""
        return not self._records.live and not len(self.loans)

    def live(self) -> Collection[Record]:
        """Hand-overs that somebody holds."""
        return self._records.live.values()

    def check_invariants(self) -> None:
        """AssertionError if the books do not balance."""
        self.index.check_invariants()
        self._handoffs.check_invariants()
        of_handoffs = sum(len(record.sealed) + len(record.bad) for record in self.live())
        assert self.index.num_pins == of_handoffs + self.loans.num_pins, "something is pinned for nobody"

    # --- private

    def _seal(self, block: Block, checksum: int, sealed: list[Stand]) -> list[Notice]:
        """One of several: those who waited for it are added to `sealed`."""
        writer = block.writer.holder
        notices: list[Notice] = []
        for stand in self.index.written(block, checksum):
            record = self._records.live[stand.holder.key]
            record.add_sealed(block)
            if stand.holder != writer:
                notices += record.there_already((block.hash,))
            sealed.append(stand)
        return notices

    def _sealed(self, stands: Iterable[Stand]) -> list[Notice]:
        """Of each hand-over once, however many of its blocks there are."""
        notices: list[Notice] = []
        for key in dict.fromkeys(stand.holder.key for stand in stands):
            record = self._records.live[key]
            notices += self._handoffs.follow(record, record.handoff.hear(Fact.SEALED)) + self._handoffs.settle(record)
        return notices + self._handoffs.serve()

    def _lent_to(self, party: Party, block_hash: BlockHash, generation: int) -> Block | None:
        block = self.index.lent_at(generation)
        return block if block and block.hash == block_hash and block.writer.party == party else None
