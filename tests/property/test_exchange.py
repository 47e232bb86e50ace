"""A store's hand-overs under everything that may happen: two attempts of one request, requests that share a prefix,
parties that come, leave and are lost, puts that begin, seal and fail in any order."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.core.errors import KVMissing, Overloaded, StaleHandoff
from services.core.handoff import Party
from services.core.ids import BlockHash, RequestId, RequestKey
from services.kvstore.block_index import Block, BlockIndex, BlockState
from services.kvstore.exchange import Exchange, Offer
from services.kvstore.notices import Available, Closed, Notice, Wanted

# Two attempts of one request have the same blocks; the third request shares their first two.
PROMPTS = {
    RequestKey(RequestId("a"), 0): ["p0", "p1", "a2", "a3"],
    RequestKey(RequestId("a"), 1): ["p0", "p1", "a2", "a3"],
    RequestKey(RequestId("b"), 0): ["p0", "p1", "b2"],
}
KEYS = sorted(PROMPTS)
keys = st.sampled_from(KEYS)
slots = st.integers(0, 3)


def hashes_of(key: RequestKey) -> list[BlockHash]:
    return [BlockHash(name.encode()) for name in PROMPTS[key]]


class ExchangeMachine(RuleBasedStateMachine):
    """Four workers' sessions; one that is lost comes back as another party."""

    @initialize(capacity=st.integers(1, 6))
    def build(self, capacity: int) -> None:
        self.exchange = Exchange(BlockIndex(capacity))
        self.capacity = capacity
        self.parties = [Party(number, f"life-{number}") for number in range(4)]
        self.next_number = 4
        self.writing: list[Block] = []
        self.wanted: dict[RequestKey, set[BlockHash]] = {key: set() for key in KEYS}
        self.told: dict[tuple[Party, RequestKey], set[BlockHash]] = {}
        self.ended: set[tuple[Party, RequestKey]] = set()
        self.is_over = False

    @rule(slot=slots, key=keys)
    def claim(self, slot: int, key: RequestKey) -> None:
        self._hear(self.exchange.claim(self.parties[slot], key, 0.0))

    @rule(slot=slots, key=keys, start=st.integers(0, 3), count=st.integers(0, 4), is_complete=st.booleans())
    def offer(self, slot: int, key: RequestKey, start: int, count: int, is_complete: bool) -> None:
        hashes = hashes_of(key)[start : start + count]
        self._hear(self.exchange.offer(self.parties[slot], Offer(key, start, hashes, is_complete), 0.0))

    @rule(slot=slots, key=keys)
    def release(self, slot: int, key: RequestKey) -> None:
        self._hear(self.exchange.release(self.parties[slot], key))

    @rule(slot=slots)
    def lose(self, slot: int) -> None:
        self._hear(self.exchange.lost(self.parties[slot]))
        self.parties[slot] = Party(self.next_number, f"life-{self.next_number}")
        self.next_number += 1

    @rule(key=keys, place=st.integers(0, 3), is_right=st.booleans(), slot=slots)
    def begin(self, key: RequestKey, place: int, is_right: bool, slot: int) -> None:
        hashes = hashes_of(key)
        block_hash = hashes[place % len(hashes)]
        writer = self._writer_of(key)
        incarnation = writer.incarnation if is_right and writer else self.parties[slot].incarnation
        pinned_before = self.exchange.index.num_used
        try:
            block = self.exchange.begin(key, incarnation, block_hash)
        except StaleHandoff:
            return
        except Overloaded:
            assert pinned_before == self.capacity, "refused although a page could be had"
            self._hear(self.exchange.give_up(key, block_hash))
            return
        assert writer is not None and incarnation == writer.incarnation
        assert block_hash in self.wanted[key], "a put that nobody asked for was taken"
        self.writing.append(block)

    @precondition(lambda self: self.writing)
    @rule(pick=st.integers(0, 7))
    def seal(self, pick: int) -> None:
        block = self.writing.pop(pick % len(self.writing))
        was_live = block.state is BlockState.WRITING
        try:
            notices = self.exchange.seal(block, 7)
        except StaleHandoff:
            assert not was_live, "a live put was refused"
            return
        assert was_live, "a late put was taken"
        self._hear(notices)

    @precondition(lambda self: self.writing)
    @rule(pick=st.integers(0, 7))
    def fail(self, pick: int) -> None:
        block = self.writing.pop(pick % len(self.writing))
        if block.state is BlockState.WRITING:
            self._hear(self.exchange.give_up(block.writer, block.hash))
        assert block.state is BlockState.GONE

    @invariant()
    def books_balance(self) -> None:
        self.exchange.check_invariants()

    @invariant()
    def what_a_reader_was_told_of_stays_readable(self) -> None:
        for (party, key), hashes in self.told.items():
            for block_hash in hashes:
                if party in self.parties and self._reader_of(key) == party:
                    assert self.exchange.readable(key, party.incarnation, block_hash).state is BlockState.SEALED

    @invariant()
    def a_reader_that_was_told_the_end_misses_nothing_that_is_sealed(self) -> None:
        for record in self.exchange.live():
            reader = record.handoff.reader
            if reader and (reader, record.key) in self.ended:
                assert record.sealed == set(record.blocks) == self.told.get((reader, record.key), set())

    @invariant()
    def nobody_else_may_read(self) -> None:
        for key in KEYS:
            reader = self._reader_of(key)
            for party in self.parties:
                if party == reader:
                    continue
                try:
                    self.exchange.readable(key, party.incarnation, hashes_of(key)[0])
                except (StaleHandoff, KVMissing):
                    continue
                raise AssertionError("a stranger may read")

    def teardown(self) -> None:
        for party in self.parties:
            self._hear(self.exchange.lost(party))
        index = self.exchange.index
        assert not self.exchange.live()
        assert index.num_used == index.num_pins == index.num_writing == 0
        assert not index.unsettled()
        self.exchange.check_invariants()

    def _reader_of(self, key: RequestKey) -> Party | None:
        return next((r.handoff.reader for r in self.exchange.live() if r.key == key), None)

    def _writer_of(self, key: RequestKey) -> Party | None:
        return next((r.handoff.writer for r in self.exchange.live() if r.key == key), None)

    def _hear(self, notices: list[Notice]) -> None:
        for notice in notices:
            match notice:
                case Wanted():
                    self.wanted[notice.key].update(notice.hashes)
                case Available():
                    told = self.told.setdefault((notice.to, notice.key), set())
                    for index, block_hash in notice.blocks:
                        assert hashes_of(notice.key)[index] == block_hash, "a block is told of under a wrong index"
                        told.add(block_hash)
                    if notice.is_complete:
                        assert (notice.to, notice.key) not in self.ended, "the end is told twice"
                        self.ended.add((notice.to, notice.key))
                case Closed():
                    assert isinstance(notice.error, StaleHandoff)


ExchangeMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestExchange = ExchangeMachine.TestCase
