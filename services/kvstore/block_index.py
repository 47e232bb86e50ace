"""Blocks by hash: who writes them, who waits for them, who pins them, which page holds them, which is evicted next.

Every change is a fact looked up in the table of `core/block_life.py`; this file does what follows. Sealed blocks that
nobody pins are cached, and give way to a new one, longest unused first. Knows neither sessions nor bytes.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence

from services.core.block_life import IN_WRITING, TABLE, BlockEffect, BlockFact, BlockState
from services.core.errors import StaleHandoff
from services.core.handoff import Holder
from services.core.ids import BlockHash
from services.kvstore.block import Answer, Block, Stand
from services.kvstore.pages import Pages, PageState


class BlockIndex:
    """At most `capacity` blocks; single-threaded and pure."""

    def __init__(self, capacity: int) -> None:
        self.pages = Pages(capacity)
        self.num_evictions = 0
        self._blocks: dict[BlockHash, Block] = {}
        self._doomed: list[Block] = []
        self._cached: OrderedDict[BlockHash, None] = OrderedDict()
        """Sealed and not pinned; the first is evicted first."""
        self._lent: dict[int, Block] = {}
        """By generation: those whose page a writer has."""
        self._changes: dict[BlockHash, bool] = {}

    @property
    def capacity(self) -> int:
        return self.pages.count

    @property
    def num_cached(self) -> int:
        """Pages that give way when one is needed."""
        return len(self._cached)

    @property
    def num_lent(self) -> int:
        """Pages that writers have."""
        return len(self._lent)

    @property
    def num_used(self) -> int:
        """Pages that are pinned, lent or in quarantine."""
        return self.capacity - self.pages.num_free - len(self._cached)

    @property
    def num_pins(self) -> int:
        """Each pinned block counts once for each holder."""
        return sum(len(block.pins) for block in (*self._blocks.values(), *self._doomed))

    @property
    def num_returning(self) -> int:
        """Lent pages that no hand-over waits for: soon they can be had."""
        return sum(all(s.holder.kind == "cache" for s in block.waiting) for block in self._lent.values())

    @property
    def has_room(self) -> bool:
        """A page can be had now."""
        return bool(self.pages.num_free or self._cached)

    def drain_changes(self) -> tuple[list[BlockHash], list[BlockHash]]:
        """What was sealed and what has gone since the last call; a hash that was both is in the list of the latter."""
        changes, self._changes = self._changes, {}
        return [each for each, is_here in changes.items() if is_here], [
            each for each, is_here in changes.items() if not is_here
        ]

    def sealed(self) -> Sequence[BlockHash]:
        """Everything that can be read."""
        return [block.hash for block in self._blocks.values() if block.is_sealed]

    def lent(self) -> Collection[Block]:
        """Blocks whose page a writer has."""
        return self._lent.values()

    def find(self, block_hash: BlockHash) -> Block | None:
        """The block that stands under this hash, in whatever state."""
        return self._blocks.get(block_hash)

    # --- writing

    def offer(self, block_hash: BlockHash, stand: Stand) -> Answer:
        """`stand` has this block. Offering again what it writes or waits for changes nothing."""
        block = self._blocks.get(block_hash)
        fact = BlockFact.CACHE if stand.holder.kind == "cache" else BlockFact.OFFER
        if block is None:
            return self._grant(block_hash, stand, fact)
        effects = self._hear(block, fact)
        if BlockEffect.PIN in effects:
            block.pins.add(stand.holder)
        if BlockEffect.QUEUE in effects and all(each.holder != stand.holder for each in block.waiting):
            block.waiting.append(stand)
        return Answer.EXISTS if block.is_sealed else Answer.PENDING

    def written(self, block: Block, checksum: int) -> tuple[Stand, ...]:
        """All its bytes are in the page. Returns the hand-overs that waited, for which it is pinned now.

        Raises StaleHandoff if its page is not lent any more.
        """
        waited = tuple(block.waiting)
        if BlockEffect.REFUSE in self._hear(block, BlockFact.WRITTEN):
            raise StaleHandoff("this block was given up while it was written")
        block.checksum = checksum
        return tuple(stand for stand in waited if stand.holder in block.pins)

    def failed(self, block: Block) -> tuple[Stand, ...]:
        """Its writer will not write it, and no copy runs. Returns the others who wait, who may offer it again."""
        return self._end_writing(block, BlockFact.FAILED)

    def lost(self, block: Block) -> tuple[Stand, ...]:
        """Its writer is out of reach. Returns the others who wait, who may offer it again."""
        return self._end_writing(block, BlockFact.WRITER_LOST if block.writer.party.is_near else BlockFact.FAILED)

    def leave(self, block_hash: BlockHash, holder: Holder) -> None:
        """`holder` does not wait for it any more, though it may be its writer."""
        block = self._blocks.get(block_hash)
        if block is None or all(stand.holder != holder for stand in block.waiting):
            return
        block.waiting = [stand for stand in block.waiting if stand.holder != holder]
        if not block.waiting:
            # What the store copies itself, it stops copying; from another a word must come.
            self._hear(block, BlockFact.UNWANTED if block.writer.party.is_near else BlockFact.FAILED)

    def lent_at(self, generation: int) -> Block | None:
        """The block whose page was lent under this generation, while it is."""
        return self._lent.get(generation)

    # --- reading

    def pin(self, block_hash: BlockHash, holder: Holder) -> Block | None:
        """Keep a sealed block for `holder`; None if it is not here."""
        block = self._blocks.get(block_hash)
        if block is None or BlockEffect.MISS in self._hear(block, BlockFact.PIN):
            return None
        block.pins.add(holder)
        return block

    def unpin(self, block_hash: BlockHash, holder: Holder) -> None:
        """`holder` is done with it; unpinned by all, it is cached as the most recently used. Legal at any time."""
        block = self._blocks.get(block_hash)
        lives = [block] if block else []
        for life in (*lives, *(each for each in self._doomed if each.hash == block_hash)):
            if holder in life.pins:
                life.pins.remove(holder)
                if not life.pins:
                    self._hear(life, BlockFact.LAST_UNPIN)

    def pinned(self, block_hash: BlockHash, holder: Holder) -> Block | None:
        """The sealed block, if it is kept for `holder`."""
        block = self._blocks.get(block_hash)
        return block if block is not None and holder in block.pins else None

    def longest(self, hashes: Sequence[BlockHash]) -> int:
        """How many from the first on are sealed."""
        for count, block_hash in enumerate(hashes):
            block = self._blocks.get(block_hash)
            if block is None or not block.is_sealed:
                return count
        return len(hashes)

    def found_bad(self, block: Block) -> tuple[Holder, ...]:
        """Its page does not match its checksum. Returns for whom it is pinned; nobody new finds it."""
        if not block.is_sealed:
            return ()
        self._hear(block, BlockFact.FOUND_BAD)
        if not block.pins:
            self._hear(block, BlockFact.LAST_UNPIN)
        return tuple(block.pins)

    def check_invariants(self) -> None:
        """AssertionError if the books do not balance."""
        self.pages.check_invariants()
        alive = [*self._blocks.values(), *self._doomed]
        held = [block.grant.page for block in alive]
        assert len(set(held)) == len(held), "two blocks have one page"
        assert len(held) + self.pages.num_free + self.pages.num_quarantined == self.capacity, "a page is lost"
        assert {b.grant.generation for b in alive if b.is_in_writing} == set(self._lent), "lent is miscounted"
        cached = {block.hash for block in self._blocks.values() if block.is_sealed and not block.pins}
        assert cached == set(self._cached), "cached is not sealed without pins"
        assert all(b.state is BlockState.DOOMED and b.pins for b in self._doomed), "a doomed block is kept for nobody"
        for block_hash, block in self._blocks.items():
            assert block.hash == block_hash and block.state in IN_WRITING | {BlockState.SEALED}, "a block is misfiled"
        for block in alive:
            self._check(block)

    def _check(self, block: Block) -> None:
        assert self.pages.generation(block.grant.page) == block.grant.generation, "a block's page was lent to another"
        page_state = PageState.LENT if block.is_in_writing else PageState.KEPT
        assert self.pages.state(block.grant.page) is page_state, "a page is in another state than its block"
        assert not block.pins or not block.is_in_writing, "a block that is written is pinned"
        assert bool(block.waiting) == (block.state is BlockState.GRANTED), "waited for, and not granted, or the reverse"
        holders = [stand.holder for stand in block.waiting]
        assert len(set(holders)) == len(holders), "somebody waits twice"

    # --- private

    def _grant(self, block_hash: BlockHash, stand: Stand, fact: BlockFact) -> Answer:
        assert BlockEffect.GRANT in TABLE[BlockState.ABSENT, fact].effects
        if not self.pages.num_free and self._cached:
            self._hear(self._blocks[next(iter(self._cached))], BlockFact.EVICT)
            self.num_evictions += 1
        grant = self.pages.lend()
        if grant is None:
            return Answer.REFUSED
        block = Block(block_hash, grant, stand, TABLE[BlockState.ABSENT, fact].state, waiting=[stand])
        self._blocks[block_hash] = self._lent[grant.generation] = block
        return Answer.GRANTED

    def _end_writing(self, block: Block, fact: BlockFact) -> tuple[Stand, ...]:
        others = tuple(stand for stand in block.waiting if stand.holder != block.writer.holder)
        return others if BlockEffect.PASS_ON in self._hear(block, fact) else ()

    def _hear(self, block: Block, fact: BlockFact) -> tuple[BlockEffect, ...]:
        was, (block.state, effects) = block.state, TABLE[block.state, fact]
        for effect in effects:
            self._do(effect, block)
        if was in IN_WRITING and block.state not in IN_WRITING:
            del self._lent[block.grant.generation]
            block.waiting = []
        if was is BlockState.SEALED and block.state is not was:
            self._changes[block.hash] = False
        if block.state is BlockState.DOOMED and was is not BlockState.DOOMED:
            self._doomed.append(block)
        elif was is BlockState.DOOMED and block.state is BlockState.ABSENT:
            self._doomed.remove(block)
        return effects

    def _do(self, effect: BlockEffect, block: Block) -> None:
        match effect:
            case BlockEffect.PIN_WAITING:
                self.pages.keep(block.grant)
                self._changes[block.hash] = True
                block.pins.update(stand.holder for stand in block.waiting if stand.holder.kind != "cache")
                if not block.pins:
                    self._cached[block.hash] = None
            case BlockEffect.CACHE:
                self._cached[block.hash] = None
            case BlockEffect.UNCACHE:
                self._cached.pop(block.hash, None)
            case BlockEffect.HIDE:
                del self._blocks[block.hash]
            case BlockEffect.FREE:
                self.pages.free(block.grant)
            case BlockEffect.QUARANTINE:
                self.pages.quarantine(block.grant, block.writer.party)
