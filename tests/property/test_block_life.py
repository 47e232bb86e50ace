"""The blocks of a store with their bytes: near writers whose copies end at any time, also after they were given up for
lost, after a recall, and after the store has forgotten everything; pins, eviction and quarantine in between."""

from zlib import crc32

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.core.errors import StaleHandoff
from services.core.handoff import Holder, Party
from services.core.ids import BlockHash, RequestId, RequestKey
from services.kvstore.block import Answer, Block, Stand
from services.kvstore.block_index import BlockIndex
from tests.support.page_bytes import Copy, PageBytes

HASHES = [BlockHash(name) for name in (b"x", b"y", b"z")]
KEYS = [RequestKey(RequestId(name)) for name in "abc"]
hashes, keys, slots, picks = st.sampled_from(HASHES), st.sampled_from(KEYS), st.integers(0, 2), st.integers(0, 9)


class BlockLifeMachine(RuleBasedStateMachine):
    """Three processes with a session each; the last of them sends its bytes through the store."""

    @initialize(capacity=st.integers(1, 4))
    def build(self, capacity: int) -> None:
        self.numbers = iter(range(1, 10_000))
        self.parties = [Party(next(self.numbers), f"process-{n}", is_near=n < 2) for n in range(3)]
        self.capacity = capacity
        self.restart()

    @precondition(lambda self: self.arena.running)
    @rule()
    def restart(self) -> None:
        """The store is another process with another arena; copies into the old one still run."""
        self.index = BlockIndex(self.capacity)
        self.arena = PageBytes(self.capacity)
        self.copies: dict[int, tuple[Party, Copy]] = {}
        self.pinned: dict[tuple[BlockHash, Holder], int] = {}
        self.unused: list[BlockHash] = []
        """Readable and pinned by nobody, the longest unused first."""

    # --- writers

    @rule(block_hash=hashes, key=keys, slot=slots, is_cache=st.booleans())
    def offer(self, block_hash: BlockHash, key: RequestKey, slot: int, is_cache: bool) -> None:
        party = self.parties[slot]
        holder = Holder("cache", key, party.number) if is_cache else Holder("handoff", key)
        if (block_hash, holder) in self.pinned:
            return
        had_room, had_free, before = self.index.has_room, self.index.pages.num_free, self.index.find(block_hash)
        answer = self.index.offer(block_hash, Stand(holder, party))
        block = self.index.find(block_hash)
        match answer:
            case Answer.GRANTED:
                assert before is None and block is not None
                assert had_free or self.index.find(self.unused.pop(0)) is None, "another than the longest unused went"
                content = block_hash + party.incarnation.encode()
                self.copies[block.grant.generation] = party, Copy(self.arena, block_hash, block.grant, content)
            case Answer.EXISTS if not is_cache:
                assert block is not None
                self.pinned[block_hash, holder] = block.grant.generation
            case Answer.REFUSED:
                assert before is None and not had_room, "refused although a page could be had"

    @precondition(lambda self: any(not c.is_running and not c.is_done for _, c in self.copies.values()))
    @rule(pick=picks)
    def start_copy(self, pick: int) -> None:
        """A near writer copies although nobody may want it any more; what the store copies, it looks at first."""
        fresh = [(p, c) for p, c in self.copies.values() if not c.is_running and not c.is_done]
        party, copy = fresh[pick % len(fresh)]
        if party in self.parties and (party.is_near or self.index.lent_at(copy.grant.generation)):
            copy.start()
            if not party.is_near:
                copy.finish()

    @precondition(lambda self: self.arena.running)
    @rule(pick=picks)
    def finish_copy(self, pick: int) -> None:
        self.arena.running[pick % len(self.arena.running)].finish()

    @precondition(lambda self: any(copy.is_done for _, copy in self.copies.values()))
    @rule(pick=picks)
    def say_written(self, pick: int) -> None:
        done = [(party, copy) for party, copy in self.copies.values() if copy.is_done]
        party, copy = done[pick % len(done)]
        block = self.index.lent_at(copy.grant.generation)
        if block is None:
            return
        assert party in self.parties and block.writer.party == party and block.hash == copy.hash
        waited = {stand.holder for stand in block.waiting if stand.holder.kind == "handoff"}
        stands = self.index.written(block, crc32(copy.content))
        assert {stand.holder for stand in stands} == block.pins == waited
        self.pinned |= {(block.hash, holder): block.grant.generation for holder in waited}
        try:
            self.index.written(block, 0)
            raise AssertionError("sealed twice")
        except StaleHandoff:
            assert block.checksum == crc32(copy.content)

    @precondition(lambda self: any(not copy.is_running for _, copy in self.copies.values()))
    @rule(pick=picks)
    def give_up(self, pick: int) -> None:
        """No copy into the page runs, and its writer says so."""
        idle = [copy for _, copy in self.copies.values() if not copy.is_running]
        copy = idle[pick % len(idle)]
        if block := self.index.lent_at(copy.grant.generation):
            self._pass_on(block, self.index.failed(block))
            del self.copies[copy.grant.generation]

    @rule(slot=slots, is_killed=st.booleans())
    def lose(self, slot: int, is_killed: bool) -> None:
        party = self.parties[slot]
        waits = [(b.hash, s.holder) for b in self.index.lent() for s in b.waiting if s.party == party]
        for block_hash, holder in waits:
            self.index.leave(block_hash, holder)
        for block in [each for each in self.index.lent() if each.writer.party == party]:
            self._pass_on(block, self.index.lost(block))
        if is_killed:
            for writer, copy in self.copies.values():
                if writer.incarnation == party.incarnation:
                    copy.die()
            self.index.pages.quiet(Party(next(self.numbers), party.incarnation))
        incarnation = f"{party.incarnation}'" if is_killed else party.incarnation
        self.parties[slot] = Party(next(self.numbers), incarnation, party.is_near)

    @rule(slot=slots)
    def quiet(self, slot: int) -> None:
        """A process that was lost has come back and waited until its earlier copies had ended."""
        party = self.parties[slot]
        earlier = [c for p, c in self.copies.values() if p.incarnation == party.incarnation and p.number < party.number]
        if not any(copy.is_running for copy in earlier):
            self.index.pages.quiet(party)
            assert party.incarnation not in self.index.pages.quarantined()

    # --- readers

    @rule(block_hash=hashes, key=keys)
    def stop_waiting(self, block_hash: BlockHash, key: RequestKey) -> None:
        self.index.leave(block_hash, Holder("handoff", key))

    @rule(block_hash=hashes, key=keys)
    def pin(self, block_hash: BlockHash, key: RequestKey) -> None:
        holder = Holder("loan", key, 7)
        if (block_hash, holder) not in self.pinned and (block := self.index.pin(block_hash, holder)):
            self.pinned[block_hash, holder] = block.grant.generation

    @precondition(lambda self: self.pinned)
    @rule(pick=picks)
    def unpin(self, pick: int) -> None:
        block_hash, holder = sorted(self.pinned)[pick % len(self.pinned)]
        self.index.unpin(block_hash, holder)
        del self.pinned[block_hash, holder]

    @rule(block_hash=hashes)
    def rot_and_find_bad(self, block_hash: BlockHash) -> None:
        block = self.index.find(block_hash)
        if block and block.is_sealed:
            self.arena.rot(block)
            self.index.found_bad(block)
            assert self.index.find(block_hash) is None and not self.index.pin(block_hash, Holder("loan", KEYS[0]))

    # --- what holds

    @invariant()
    def books_balance(self) -> None:
        self.index.check_invariants()

    @invariant()
    def bytes_are_what_was_sealed_and_copies_land_only_in_their_own_loan(self) -> None:
        self.arena.check(self.index)

    @invariant()
    def what_nobody_uses_is_kept_in_order(self) -> None:
        pinned = {block_hash for (block_hash, _), made in self.pinned.items() if made not in self.arena.rotten}
        idle = [each for each in self.index.sealed() if each not in pinned]
        self.unused = [each for each in self.unused if each in idle]
        self.unused += [each for each in idle if each not in self.unused]
        assert self.index.num_cached == len(idle)

    @invariant()
    def pins_are_exactly_the_live_holders(self) -> None:
        assert self.index.num_pins == len(self.pinned)
        for (block_hash, holder), generation in self.pinned.items():
            block = self.index.pinned(block_hash, holder)
            assert (block.grant.generation if block else None) in (generation, None)
            assert block or generation in self.arena.rotten, "a pinned block is gone"

    def teardown(self) -> None:
        for slot in range(3):
            self.lose(slot, is_killed=True)
        for block_hash, holder in self.pinned:
            self.index.unpin(block_hash, holder)
        self.index.check_invariants()
        assert self.index.num_used == self.index.num_pins == self.index.num_lent == 0

    def _pass_on(self, block: Block, stands: tuple[Stand, ...]) -> None:
        for stand in stands:
            answer = self.index.offer(block.hash, stand)
            heir = self.index.find(block.hash)
            if answer is Answer.GRANTED and heir:
                content = block.hash + stand.party.incarnation.encode()
                self.copies[heir.grant.generation] = stand.party, Copy(self.arena, block.hash, heir.grant, content)


BlockLifeMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestBlockLife = BlockLifeMachine.TestCase
