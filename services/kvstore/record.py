"""A hand-over and its manifest: which blocks belong to it, which are readable, what its two ends have heard of.

Knows neither the index nor other hand-overs.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from services.core.handoff import WRITABLE, Handoff
from services.core.ids import BlockHash, RequestKey
from services.kvstore.notices import Available, Notice


@dataclass(slots=True, eq=False)
class Record:
    """One hand-over of a store."""

    handoff: Handoff
    blocks: dict[BlockHash, int] = field(default_factory=dict)
    """Index in the prompt of every block that is there or may still come, in the order offered."""
    sealed: set[BlockHash] = field(default_factory=set)
    """Those that are readable; all of them are pinned while the hand-over lives."""
    fresh: list[BlockHash] = field(default_factory=list)
    """Sealed ones the reader has not heard of."""
    is_complete: bool = False
    """The writer will offer no more."""

    @property
    def key(self) -> RequestKey:
        return self.handoff.key

    def add_sealed(self, block_hash: BlockHash) -> None:
        """The block became readable."""
        if block_hash not in self.sealed:
            self.sealed.add(block_hash)
            self.fresh.append(block_hash)

    def forget(self, block_hash: BlockHash) -> None:
        """The block is not part of the hand-over any more."""
        self.blocks.pop(block_hash, None)
        if block_hash in self.sealed:
            self.sealed.remove(block_hash)
            self.fresh = [each for each in self.fresh if each != block_hash]

    def there_already(self, hashes: Iterable[BlockHash]) -> list[Notice]:
        """To the writer: these came from elsewhere."""
        blocks = tuple((self.blocks[block_hash], block_hash) for block_hash in hashes)
        return [Available(self.handoff.writer, self.key, blocks)] if self.handoff.writer else []

    def news(self) -> list[Notice]:
        """What the reader has not heard of: sealed blocks, and the end. Empty, it says that the writer is there."""
        blocks = tuple((self.blocks[block_hash], block_hash) for block_hash in self.fresh)
        self.fresh.clear()
        if self.handoff.reader is None:
            return []
        return [Available(self.handoff.reader, self.key, blocks, self.handoff.state not in WRITABLE)]
