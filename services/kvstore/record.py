"""A hand-over and its manifest: which blocks belong to it, which are readable, what its two ends have heard of.

Knows neither the index nor other hand-overs.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from services.core.handoff import WRITABLE, Handoff, Holder
from services.core.ids import BlockHash, RequestKey
from services.kvstore.block import Block
from services.kvstore.notices import Available, BlockRef, Notice


@dataclass(slots=True, eq=False)
class Record:
    """One hand-over of a store."""

    handoff: Handoff
    blocks: dict[BlockHash, int] = field(default_factory=dict)
    """Index in the prompt of every block that is there or may still come, in the order offered."""
    sealed: dict[BlockHash, BlockRef] = field(default_factory=dict)
    """Those that are readable; all of them are pinned while the hand-over lives."""
    bad: set[BlockHash] = field(default_factory=set)
    """Those that were readable until found bad: no part of it any more, but pinned as long as the others."""
    refused: set[BlockHash] = field(default_factory=set)
    """Those there was no page for."""
    fresh: list[BlockHash] = field(default_factory=list)
    """Sealed ones the reader has not heard of."""
    failed: list[BlockHash] = field(default_factory=list)
    """Those that will not come, and the reader has not heard so."""
    wanted: frozenset[BlockHash] | None = None
    """What the reader lacks; None while it has not said so."""
    is_complete: bool = False
    """The writer will offer no more."""

    @property
    def key(self) -> RequestKey:
        return self.handoff.key

    @property
    def holder(self) -> Holder:
        """As which it waits, writes and pins."""
        return Holder("handoff", self.handoff.key)

    @property
    def is_settled(self) -> bool:
        """Nothing is still to come."""
        return self.is_complete and len(self.sealed) == len(self.blocks)

    def is_wanted(self, block_hash: BlockHash) -> bool:
        """The reader lacks it, as far as is known."""
        return self.wanted is None or block_hash in self.wanted

    def unsealed(self) -> list[BlockHash]:
        """Those that may still come."""
        return [each for each in self.blocks if each not in self.sealed]

    def add_sealed(self, block: Block) -> None:
        """The block became readable."""
        if block.hash not in self.sealed:
            self.fresh.append(block.hash)
        self.sealed[block.hash] = BlockRef(self.blocks[block.hash], block.hash, block.grant, block.checksum)

    def forget(self, block_hash: BlockHash) -> None:
        """The block is not part of the hand-over any more."""
        self.blocks.pop(block_hash, None)
        if self.sealed.pop(block_hash, None):
            self.fresh = [each for each in self.fresh if each != block_hash]

    def fail(self, block_hash: BlockHash) -> None:
        """The block will not come, or is bad."""
        if block_hash in self.sealed:
            self.bad.add(block_hash)
        self.forget(block_hash)
        self.failed.append(block_hash)

    def refuse(self, block_hash: BlockHash) -> None:
        """There is no page for the block: it will not come."""
        self.refused.add(block_hash)
        self.fail(block_hash)

    def clear(self) -> None:
        """It is over: only its name is remembered."""
        self.blocks, self.sealed, self.bad, self.refused = {}, {}, set(), set()
        self.fresh, self.failed, self.wanted = [], [], None

    def there_already(self, hashes: Iterable[BlockHash]) -> list[Notice]:
        """To the writer: these came from elsewhere."""
        blocks = tuple(self.sealed[block_hash] for block_hash in hashes)
        return [Available(self.handoff.writer, self.key, blocks)] if self.handoff.writer else []

    def news(self) -> list[Notice]:
        """What the reader has not heard of: sealed and failed blocks, and the end. Empty: that the writer is there."""
        if self.handoff.reader is None:
            return []
        blocks = tuple(self.sealed[block_hash] for block_hash in self.fresh)
        never = tuple(self.failed)
        self.fresh.clear()
        self.failed.clear()
        is_over = self.handoff.state not in WRITABLE
        return [Available(self.handoff.reader, self.key, blocks, is_over, never)]
