"""Blocks of one KV cache: who holds them, which are cached under a hash, in which order they are reused.

    free ──reserve──▶ used ──release──▶ free                 (never sealed, or sealed second)
                       │ seal              ▲ evict
                       ▼                   │
                     used ──release──▶ cached ──reserve (hit)──▶ used

A block is used while a request holds it or a transfer pins it. The others are idle, and the order of the idle list is
the eviction order: free blocks at the front, then cached ones, longest unused first. Knows blocks, not requests, and
nothing of what the bytes mean.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.core.blocks import FullBlock
from services.core.ids import BlockHash, BlockId


@dataclass(frozen=True, slots=True)
class Reservation:
    """A block table for one holder: `hits` cached blocks, then fresh ones."""

    blocks: tuple[BlockId, ...]
    hits: int


class BlockPool:
    """Allocates, shares, seals and releases; wrong use (releasing what is not held) raises ValueError."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._holders = [0] * num_blocks
        self._pins = [0] * num_blocks
        self._idle: OrderedDict[BlockId, None] = OrderedDict((BlockId(n), None) for n in range(num_blocks))
        self._content: dict[BlockId, FullBlock] = {}
        self._by_hash: dict[BlockHash, BlockId] = {}
        self._num_cached = 0

    @property
    def num_free(self) -> int:
        """Idle blocks without content."""
        return len(self._idle) - self._num_cached

    @property
    def num_cached(self) -> int:
        """Idle blocks kept for a later hit; they give way to any reservation."""
        return self._num_cached

    @property
    def num_used(self) -> int:
        """Blocks that somebody holds or pins."""
        return self.num_blocks - len(self._idle)

    @property
    def num_pinned(self) -> int:
        return sum(1 for pins in self._pins if pins)

    def holders(self, block: BlockId) -> int:
        return self._holders[block]

    def is_sealed(self, block: BlockId) -> bool:
        """Whether a reservation may hit this block."""
        return block in self._content

    def reserve(self, prefix: Sequence[FullBlock], count: int, spare: int = 0) -> Reservation | None:
        """Hold `count` blocks: the longest cached run of `prefix` (at most `count` long), then fresh ones.

        None, and nothing changes, unless that leaves `spare` blocks idle.
        """
        if not self.fits(prefix, count, spare):
            return None
        hits = self._hits(prefix)
        for block in hits:
            self._leave_idle(block)
        blocks = (*hits, *(self._evict() for _ in range(count - len(hits))))
        for block in blocks:
            self._holders[block] += 1
        return Reservation(blocks, len(hits))

    def fits(self, prefix: Sequence[FullBlock], count: int, spare: int = 0, without: Iterable[BlockId] = ()) -> bool:
        """Whether `reserve` succeeds, now or once the holders of these blocks (named once per holder) let go."""
        let_go = Counter(without)
        freed = {block for block, times in let_go.items() if times == self._holders[block] and not self._pins[block]}
        hits = self._hits(prefix)
        hits_from_idle = sum(1 for block in hits if block in self._idle or block in freed)
        return len(self._idle) + len(freed) - hits_from_idle >= count - len(hits) + spare

    def seal(self, block: BlockId, content: FullBlock) -> bool:
        """Let others hit this held block from now on; it must not be written again.

        False if another block already has the hash: that one stays the cached one, this one stays private.
        """
        if not self._holders[block]:
            raise ValueError(f"block {block} is sealed by nobody who holds it")
        if content.hash in self._by_hash:
            return self._by_hash[content.hash] == block
        if block in self._content:
            raise ValueError(f"block {block} is sealed with other content")
        self._by_hash[content.hash] = block
        self._content[block] = content
        return True

    def forget(self, block: BlockId) -> None:
        """Nobody hits this held block any more; those who share it keep it."""
        if not self._holders[block]:
            raise ValueError(f"block {block} is forgotten by nobody who holds it")
        content = self._content.pop(block, None)
        if content is not None:
            del self._by_hash[content.hash]

    def pin(self, block: BlockId) -> None:
        """A transfer reads or fills this held block: it is not reused before `unpin`, even when released."""
        if not self._holders[block]:
            raise ValueError(f"block {block} is pinned by nobody who holds it")
        self._pins[block] += 1

    def unpin(self, block: BlockId) -> None:
        """The copy returned."""
        if not self._pins[block]:
            raise ValueError(f"block {block} is not pinned")
        self._pins[block] -= 1
        self._enter_idle_if_unused(block)

    def release(self, blocks: Iterable[BlockId]) -> None:
        """One holder lets go of its block table, given in order: its tail is evicted before its head.

        So of a long prefix the shorter ones survive, and a cached block is never left behind a missing one for long.
        """
        for block in reversed(tuple(blocks)):
            if not self._holders[block]:
                raise ValueError(f"block {block} is not held")
            self._holders[block] -= 1
            self._enter_idle_if_unused(block)

    def check_invariants(self) -> None:
        """AssertionError if the books do not balance."""
        assert self.num_free + self.num_cached + self.num_used == self.num_blocks, "blocks got lost"
        assert self._num_cached == sum(1 for block in self._idle if block in self._content), "cached blocks miscounted"
        for block in map(BlockId, range(self.num_blocks)):
            assert self._holders[block] >= 0 and self._pins[block] >= 0, f"block {block} was let go too often"
            is_used = self._holders[block] > 0 or self._pins[block] > 0
            assert is_used != (block in self._idle), f"block {block} is both used and idle, or neither"
        assert {content.hash: block for block, content in self._content.items()} == self._by_hash, "index and content"
        order = [block in self._content for block in self._idle]
        assert order == sorted(order), "a cached block would be evicted before a free one"

    def _hits(self, prefix: Sequence[FullBlock]) -> list[BlockId]:
        """The tokens are compared, so that a hash collision is a miss and not somebody else's KV."""
        hits = []
        for wanted in prefix:
            block = self._by_hash.get(wanted.hash)
            if block is None or self._content[block].tokens != wanted.tokens:
                break
            hits.append(block)
        return hits

    def _evict(self) -> BlockId:
        block, _ = self._idle.popitem(last=False)
        content = self._content.pop(block, None)
        if content is not None:
            del self._by_hash[content.hash]
            self._num_cached -= 1
        return block

    def _leave_idle(self, block: BlockId) -> None:
        if block in self._idle:
            del self._idle[block]
            self._num_cached -= 1

    def _enter_idle_if_unused(self, block: BlockId) -> None:
        if self._holders[block] or self._pins[block]:
            return
        self._idle[block] = None
        if block in self._content:
            self._num_cached += 1
        else:
            self._idle.move_to_end(block, last=False)
