"""Blocks as they come in by parts: whole in a part, or in pieces, of which one block at a time is gathered.

Whatever a store sends, no more is kept than one block; what does not fit together never becomes a block.
"""

from collections.abc import Iterator
from typing import NamedTuple

from services.core.errors import KVCorrupt
from services.core.ids import BlockHash
from services.runtime.part_wire import unpacked


class Arrival(NamedTuple):
    """A block that is there, or is refused."""

    hash: BlockHash
    content: memoryview
    """Valid until the next part is taken."""
    checksum: int
    """As the store says."""
    refusal: str = ""
    """A class name from `core/errors.py`."""


class Incoming:
    """One stream of parts, in order."""

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._hash = BlockHash(b"")
        """Of the block that is being gathered."""
        self._gathered = bytearray()

    def take(self, raw: bytes) -> Iterator[Arrival]:
        """Blocks that are complete with this part. Raises KVCorrupt for what is no part."""
        pieces, content = unpacked(raw)
        if sum(piece.size for piece in pieces) != content.nbytes:
            raise KVCorrupt("a part has other bytes than its pieces say")
        at = 0
        for piece in pieces:
            block_hash, part = BlockHash(piece.hash), content[at : at + piece.size]
            at += piece.size
            if piece.refusal:
                yield Arrival(block_hash, part, 0, piece.refusal)
            elif part.nbytes == self._block_bytes:
                yield Arrival(block_hash, part, piece.checksum)
            elif self._is_whole_with(block_hash, piece.offset, part):
                yield Arrival(block_hash, memoryview(self._gathered), piece.checksum)

    def _is_whole_with(self, block_hash: BlockHash, offset: int, part: memoryview) -> bool:
        if offset == 0:
            self._hash, self._gathered = block_hash, bytearray()
        fits = len(self._gathered) + part.nbytes <= self._block_bytes
        if block_hash != self._hash or offset != len(self._gathered) or not fits:
            return False
        self._gathered += part
        return len(self._gathered) == self._block_bytes
