"""The hand-overs of a store: carries out what the tables say, between records, blocks and those who have to be told.

A block that a writer gives up, or loses, is offered again for the others who wait for it. One that there is no page for
is refused, unless a page is coming back soon (`shortage.py`). Knows neither bytes, loans nor messages.
"""

from collections.abc import Iterable, Sequence

from services.core.errors import StaleHandoff
from services.core.handoff import LIVE, WRITABLE, Effect, Fact, Party
from services.core.ids import BlockHash
from services.kvstore.archive import REMEMBERED, Archive
from services.kvstore.block import Answer, Stand
from services.kvstore.block_index import BlockIndex
from services.kvstore.notices import Closed, Granted, Notice, Wanted
from services.kvstore.record import Record
from services.kvstore.shortage import Shortage


class Handoffs:
    """Every verb returns what to tell whom."""

    def __init__(self, index: BlockIndex) -> None:
        self.index = index
        self.records = Archive()
        self._shortage = Shortage()

    def take(self, record: Record, party: Party, first_index: int, hashes: Sequence[BlockHash]) -> list[Notice]:
        """The writer of a hand-over has these blocks."""
        stand = Stand(record.holder, party)
        by_answer: dict[Answer, list[BlockHash]] = {answer: [] for answer in Answer}
        not_needed = tuple(each for each in hashes if not record.is_wanted(each))
        for number, block_hash in enumerate(hashes, start=first_index):
            if record.is_wanted(block_hash) and block_hash not in record.blocks:
                answer = Answer.REFUSED if block_hash in record.bad else self._offer(block_hash, stand)
                by_answer[answer].append(block_hash)
                record.blocks[block_hash] = number
        granted = tuple(map(self._granted, by_answer[Answer.GRANTED]))
        there, refused = by_answer[Answer.EXISTS], by_answer[Answer.REFUSED]
        notices: list[Notice] = []
        if granted or refused or not_needed:
            notices.append(Wanted(party, record.key, granted, tuple(refused), not_needed))
        for block_hash in refused:
            record.refuse(block_hash)
        if there:
            notices += self._there(record, there)
        elif refused:
            notices += self.follow(record, record.handoff.hear(Fact.FAILED))
        return notices + self.settle(record)

    def leave(self, record: Record, party: Party, *, is_lost: bool) -> list[Notice]:
        """`party` has released its ends of a hand-over, or is lost."""
        facts = record.handoff.facts_of_leaving(party, is_lost=is_lost)
        return [notice for fact in facts for notice in self.follow(record, record.handoff.hear(fact))]

    def fail(self, record: Record, block_hash: BlockHash) -> list[Notice]:
        """A block of a hand-over will not come, or is bad."""
        record.fail(block_hash)
        return self.follow(record, record.handoff.hear(Fact.FAILED)) + self.settle(record)

    def settle(self, record: Record) -> list[Notice]:
        """If nothing is still to come, the reader hears so."""
        if record.handoff.state not in WRITABLE or not record.is_settled:
            return []
        return self.follow(record, record.handoff.hear(Fact.COMPLETE))

    def pass_on(self, block_hash: BlockHash, stands: Iterable[Stand]) -> list[Notice]:
        """A block is absent again: the first of those who wait becomes its writer, the others wait for that one."""
        return [notice for stand in stands for notice in self._offer_again(block_hash, stand)]

    def serve(self) -> list[Notice]:
        """Pages may have come back, or turned out not to: those who wait for one hear so."""
        notices: list[Notice] = []
        while len(self._shortage):
            if self.index.has_room:
                notices += self._offer_again(*self._shortage.take_first())
            elif len(self._shortage) > self.index.num_returning:
                notices += self._refuse(*self._shortage.take_last())
            else:
                break
        return notices

    def follow(self, record: Record, effects: Iterable[Effect], party: Party | None = None) -> list[Notice]:
        """Carries out `effects`; `party` caused the fact."""
        notices: list[Notice] = []
        for effect in effects:
            notices += self._do(effect, record, party)
        self.records.file(record)
        return notices

    def check_invariants(self) -> None:
        """AssertionError if the books do not balance."""
        assert len(self.records.past) <= REMEMBERED, "too much is remembered"
        for record in self.records.live.values():
            self._check(record)
        for block in self.index.lent():
            for stand in block.waiting:
                if stand.holder.kind == "handoff":
                    record = self.records.live[stand.holder.key]
                    assert block.hash in record.unsealed(), "a block is awaited for a hand-over that does not list it"
        assert len(self._shortage) <= self.index.num_returning, "somebody waits for a page that does not come"

    # --- private

    def _check(self, record: Record) -> None:
        assert record.handoff.state in LIVE, "a hand-over that nobody holds is live"
        assert record.sealed.keys() <= record.blocks.keys(), "a manifest is wrong"
        assert set(record.fresh) <= record.sealed.keys(), "news are of blocks that are not there"
        assert record.handoff.state in WRITABLE or not record.unsealed(), "a block is awaited from nobody"
        for ref in record.sealed.values():
            block = self.index.pinned(ref.hash, record.holder)
            assert block and (block.grant, block.checksum) == (ref.grant, ref.checksum), "a pin is missing"
        for block_hash in record.unsealed():
            block = self.index.find(block_hash)
            waits = block is not None and any(stand.holder == record.holder for stand in block.waiting)
            assert waits != ((block_hash, record.key) in self._shortage), "an awaited block is not to come, or twice"

    def _offer(self, block_hash: BlockHash, stand: Stand) -> Answer:
        answer = self.index.offer(block_hash, stand)
        if answer is Answer.REFUSED and len(self._shortage) < self.index.num_returning:
            self._shortage.add(block_hash, stand)
            return Answer.PENDING
        return answer

    def _offer_again(self, block_hash: BlockHash, stand: Stand) -> list[Notice]:
        match self._offer(block_hash, stand):
            case Answer.GRANTED:
                return [Wanted(stand.party, stand.holder.key, (self._granted(block_hash),))]
            case Answer.EXISTS:
                record = self.records.live[stand.holder.key]
                return self._there(record, (block_hash,)) + self.settle(record)
            case Answer.REFUSED:
                return self._refuse(block_hash, stand)
        return []

    def _refuse(self, block_hash: BlockHash, stand: Stand) -> list[Notice]:
        record = self.records.live[stand.holder.key]
        record.refuse(block_hash)
        notices = self.follow(record, record.handoff.hear(Fact.FAILED)) + self.settle(record)
        return [Wanted(stand.party, record.key, refused=(block_hash,)), *notices]

    def _granted(self, block_hash: BlockHash) -> Granted:
        block = self.index.find(block_hash)
        assert block is not None
        return Granted(block_hash, block.grant)

    def _there(self, record: Record, hashes: Sequence[BlockHash]) -> list[Notice]:
        for block_hash in hashes:
            if block := self.index.find(block_hash):
                record.add_sealed(block)
        return record.there_already(hashes) + self.follow(record, record.handoff.hear(Fact.SEALED))

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
                return self._withdraw(record)
            case Effect.RECALL:
                self._recall(record, record.unsealed())
            case Effect.SKIP:
                return self._skip(record)
            case Effect.UNPIN:
                # The tail first, so that of a long prefix the head is evicted last.
                self._unpin(record, [*record.bad, *reversed(record.sealed)])
                record.bad.clear()
            case Effect.PIN_AGAIN:
                self._pin_again(record)
        return []

    def _withdraw(self, record: Record) -> list[Notice]:
        notices: list[Notice] = []
        unsealed = record.unsealed()
        mine = [block for block in map(self.index.find, unsealed) if block and block.writer.holder == record.holder]
        self._recall(record, set(unsealed) - {block.hash for block in mine})
        for block in mine:
            record.forget(block.hash)
            notices += self.pass_on(block.hash, self.index.failed(block))
        return notices

    def _recall(self, record: Record, hashes: Iterable[BlockHash]) -> None:
        for block_hash in hashes:
            record.forget(block_hash)
            self._shortage.drop(block_hash, record.key)
            self.index.leave(block_hash, record.holder)

    def _skip(self, record: Record) -> list[Notice]:
        unsealed = [each for each in record.unsealed() if not record.is_wanted(each)]
        self._recall(record, unsealed)
        sealed = [each for each in reversed(record.sealed) if not record.is_wanted(each)]
        self._unpin(record, sealed)
        for block_hash in sealed:
            record.forget(block_hash)
        writer = record.handoff.writer
        return [Wanted(writer, record.key, not_needed=tuple(unsealed))] if writer and unsealed else []

    def _unpin(self, record: Record, hashes: Iterable[BlockHash]) -> None:
        for block_hash in hashes:
            self.index.unpin(block_hash, record.holder)

    def _pin_again(self, record: Record) -> None:
        for block_hash in tuple(record.blocks):
            if block := self.index.pin(block_hash, record.holder):
                record.add_sealed(block)
            else:
                record.forget(block_hash)
