"""Random holders and transfers over few blocks: the books always balance and nobody is given what another has."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.core.block_pool import BlockPool
from services.core.blocks import Chain, FullBlock, root
from services.core.ids import BlockId

PREFIXES = st.lists(st.integers(0, 1), min_size=1, max_size=5).map(
    lambda tokens: Chain(root(b"w", b""), 1, tokens).full
)
PICKS = st.integers(0, 7)


class BlockPoolMachine(RuleBasedStateMachine):
    """Each holder has a block table and what it would seal there; `sealed` counts from the head."""

    @initialize(num_blocks=st.integers(1, 10))
    def begin(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.holders: list[tuple[tuple[BlockId, ...], list[FullBlock]]] = []
        self.pins: list[BlockId] = []
        self.written: dict[BlockId, tuple[int, ...]] = {}

    @rule(prefix=PREFIXES, spare=st.integers(0, 2))
    def reserve(self, prefix: list[FullBlock], spare: int) -> None:
        in_use = set(self.pins) | {block for blocks, _ in self.holders for block in blocks}
        idle = self.pool.num_free + self.pool.num_cached
        reservation = self.pool.reserve(prefix, len(prefix), spare)
        if reservation is None:
            assert self.pool.num_free + self.pool.num_cached == idle < len(prefix) + spare
            return
        assert self.pool.num_free + self.pool.num_cached >= spare
        hits, fresh = reservation.blocks[: reservation.hits], reservation.blocks[reservation.hits :]
        assert [self.written[block] for block in hits] == [block.tokens for block in prefix[: reservation.hits]]
        assert not in_use & set(fresh), "a block with two owners"
        assert len(set(reservation.blocks)) == len(prefix)
        self.holders.append((reservation.blocks, prefix))
        self.written.update((block, ()) for block in fresh)

    @precondition(lambda self: self.holders)
    @rule(pick=PICKS)
    def compute(self, pick: int) -> None:
        """Fill and seal a whole table, shared blocks excepted."""
        blocks, prefix = self.holders[pick % len(self.holders)]
        for block, content in zip(blocks, prefix, strict=True):
            if not self.pool.is_sealed(block):
                self.written[block] = content.tokens
                self.pool.seal(block, content)

    @precondition(lambda self: self.holders)
    @rule(pick=PICKS)
    def release(self, pick: int) -> None:
        blocks, _ = self.holders.pop(pick % len(self.holders))
        self.pool.release(blocks)

    @precondition(lambda self: self.holders)
    @rule(pick=PICKS, at=PICKS)
    def pin(self, pick: int, at: int) -> None:
        blocks, _ = self.holders[pick % len(self.holders)]
        self.pins.append(blocks[at % len(blocks)])
        self.pool.pin(self.pins[-1])

    @precondition(lambda self: self.pins)
    @rule(pick=PICKS)
    def unpin(self, pick: int) -> None:
        self.pool.unpin(self.pins.pop(pick % len(self.pins)))

    @precondition(lambda self: self.holders)
    @rule(pick=PICKS, at=PICKS)
    def forget(self, pick: int, at: int) -> None:
        blocks, _ = self.holders[pick % len(self.holders)]
        self.pool.forget(blocks[at % len(blocks)])

    @invariant()
    def books_balance(self) -> None:
        self.pool.check_invariants()
        held = Counter(block for blocks, _ in self.holders for block in blocks)
        assert all(self.pool.holders(BlockId(n)) == held[BlockId(n)] for n in range(self.pool.num_blocks))
        assert self.pool.num_pinned == len(set(self.pins))
        assert self.pool.num_used == len(set(held) | set(self.pins))


TestBlockPool = BlockPoolMachine.TestCase
TestBlockPool.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
