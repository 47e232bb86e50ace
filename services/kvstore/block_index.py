"""Blocks by hash: who writes them, who waits for them, who pins them, which page holds them, which is evicted next.

    (absent) ──offer──▶ WANTED ──begin──▶ WRITING ──seal──▶ SEALED ──evict──▶ (absent)
                          │ withdraw         │ withdraw        pinned by hand-overs, or cached in LRU order
                          ▼                  ▼
                       (absent), or WANTED of the first in line

A page is taken only when bytes arrive; sealed blocks nobody pins give way then, longest unused first. Two hand-overs
that offer one hash: the second waits in line until the first seals or withdraws. Knows neither sessions nor bytes.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from services.core.errors import Overloaded, StaleHandoff
from services.core.ids import BlockHash, RequestKey


class Answer(Enum):
    """To an offer."""

    WRITE = "write"
    """Absent: whoever offered it is its writer now."""
    EXISTS = "exists"
    """Sealed, and now pinned for whoever offered it."""
    PENDING = "pending"
    """Another hand-over writes it; whoever offered it stands in line."""


class BlockState(Enum):
    WANTED = "wanted"
    WRITING = "writing"
    SEALED = "sealed"
    GONE = "gone"
    """Withdrawn or evicted: whoever still refers to it is late."""


@dataclass(slots=True, eq=False)
class Block:
    """One life of a block under its hash; a later life is another object, so a late writer is recognized."""

    hash: BlockHash
    writer: RequestKey
    state: BlockState = BlockState.WANTED
    page: int = -1
    """Where its bytes are; only while WRITING or SEALED."""
    checksum: int = 0
    """xxh3-64 of its bytes; only when SEALED."""
    line: list[RequestKey] = field(default_factory=list)
    """Hand-overs that wait for it, in order."""
    pins: set[RequestKey] = field(default_factory=set)


class BlockIndex:
    """At most `capacity` pages; single-threaded and pure."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._blocks: dict[BlockHash, Block] = {}
        self._cached: OrderedDict[BlockHash, None] = OrderedDict()
        """Sealed and not pinned; the first is evicted first."""
        self._free: list[int] = list(range(capacity - 1, -1, -1))
        self._writing = 0

    @property
    def num_cached(self) -> int:
        """Pages that give way when one is needed."""
        return len(self._cached)

    @property
    def num_writing(self) -> int:
        return self._writing

    @property
    def num_used(self) -> int:
        """Pages that are pinned or being written."""
        return self.capacity - len(self._free) - len(self._cached)

    @property
    def num_pins(self) -> int:
        """Each pinned block counts once for each hand-over."""
        return sum(len(block.pins) for block in self._blocks.values())

    # --- writing

    def offer(self, block_hash: BlockHash, key: RequestKey) -> Answer:
        """`key` has this block. Offering again what it writes or waits for changes nothing."""
        block = self._blocks.get(block_hash)
        if block is None:
            self._blocks[block_hash] = Block(block_hash, key)
            return Answer.WRITE
        if self.pin(block_hash, key):
            return Answer.EXISTS
        if block.writer == key:
            return Answer.WRITE
        if key not in block.line:
            block.line.append(key)
        return Answer.PENDING

    def begin(self, block_hash: BlockHash, key: RequestKey) -> Block:
        """Its bytes arrive: gives it a page, evicting if need be.

        Raises StaleHandoff unless `key` is its writer and has not begun, Overloaded if every page is pinned or written.
        """
        block = self._blocks.get(block_hash)
        if block is None or block.writer != key or block.state is not BlockState.WANTED:
            raise StaleHandoff("this block is not awaited from this hand-over")
        block.page = self._take_page()
        block.state = BlockState.WRITING
        self._writing += 1
        return block

    def seal(self, block: Block, checksum: int) -> tuple[RequestKey, ...]:
        """Its bytes are there and verified. Returns the hand-overs for which it is pinned now, the writer's first."""
        if block.state is not BlockState.WRITING:
            raise StaleHandoff("this block was given up while it was written")
        holders = (block.writer, *block.line)
        block.state = BlockState.SEALED
        block.checksum = checksum
        block.line.clear()
        block.pins.update(holders)
        self._writing -= 1
        return holders

    def withdraw(self, block_hash: BlockHash, key: RequestKey) -> RequestKey | None:
        """`key` will not write an unsealed block after all, or waits for it no more.

        Returns the hand-over that is its writer from now on, if that is another than before.
        """
        block = self._blocks.get(block_hash)
        if block is None or block.state is BlockState.SEALED:
            return None
        if block.writer != key:
            if key in block.line:
                block.line.remove(key)
            return None
        return self._replace(block)

    # --- reading

    def pin(self, block_hash: BlockHash, key: RequestKey) -> bool:
        """Keep a sealed block for `key`; False if it is not here."""
        block = self._blocks.get(block_hash)
        if block is None or block.state is not BlockState.SEALED:
            return False
        block.pins.add(key)
        self._cached.pop(block_hash, None)
        return True

    def unpin(self, block_hash: BlockHash, key: RequestKey) -> None:
        """`key` is done with it; unpinned by all, it is cached as the most recently used. Legal at any time."""
        block = self._blocks.get(block_hash)
        if block is None or key not in block.pins:
            return
        block.pins.remove(key)
        if not block.pins:
            self._cached[block_hash] = None

    def pinned(self, block_hash: BlockHash, key: RequestKey) -> Block | None:
        """The sealed block, if it is kept for `key`."""
        block = self._blocks.get(block_hash)
        return block if block is not None and key in block.pins else None

    def check_invariants(self) -> None:
        """AssertionError if the books do not balance."""
        with_page = [b for b in self._blocks.values() if b.state in (BlockState.WRITING, BlockState.SEALED)]
        pages = sorted([*self._free, *(block.page for block in with_page)])
        assert pages == list(range(self.capacity)), "a page is lost or used twice"
        sealed = [block for block in with_page if block.state is BlockState.SEALED]
        assert {b.hash for b in sealed if not b.pins} == set(self._cached), "cached is not sealed without pins"
        assert len(with_page) - len(sealed) == self._writing, "blocks being written are miscounted"
        for block_hash, block in self._blocks.items():
            assert block.hash == block_hash and block.state is not BlockState.GONE, "a block is filed wrongly"
            assert not block.pins or block.state is BlockState.SEALED, "an unsealed block is pinned"
            assert not block.line or block.state is not BlockState.SEALED, "somebody waits for a sealed block"
            assert len(set(block.line)) == len(block.line), "somebody stands in line twice"
            assert block.writer not in block.line, "a writer waits for itself"

    def unsettled(self) -> Sequence[Block]:
        """Blocks that are wanted or being written."""
        return [block for block in self._blocks.values() if block.state is not BlockState.SEALED]

    # --- private

    def _take_page(self) -> int:
        if self._free:
            return self._free.pop()
        if not self._cached:
            raise Overloaded("every block of the store is in use")
        oldest, _ = self._cached.popitem(last=False)
        block = self._blocks.pop(oldest)
        block.state = BlockState.GONE
        return block.page

    def _replace(self, block: Block) -> RequestKey | None:
        del self._blocks[block.hash]
        if block.state is BlockState.WRITING:
            self._writing -= 1
            self._free.append(block.page)
        block.state = BlockState.GONE
        if not block.line:
            return None
        heir, *line = block.line
        self._blocks[block.hash] = Block(block.hash, heir, line=line)
        return heir
