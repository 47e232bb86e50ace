"""One stream of gets: the blocks asked for, in order, in parts of about 1 MiB.

A block that fits into a part is never cut. The pages are looked at again for every part, at the moment when it is made,
so that a page which was let go meanwhile is never read. Whoever sends the parts keeps to the reader's credits.
"""

from collections import deque

from services.core.errors import KVMissing, StaleHandoff
from services.core.ids import BlockHash
from services.kvstore.block import Block
from services.kvstore.shelf import Shelf
from services.pb import kvstore_pb2
from services.runtime.codec import key_from_pb
from services.runtime.dial import PART_BYTES
from services.runtime.part_wire import packed


class Outflow:
    """What is still to be sent."""

    def __init__(self, shelf: Shelf, wanted: kvstore_pb2.PullOpen) -> None:
        self._shelf = shelf
        self._key = key_from_pb(wanted.handoff)
        self._incarnation = wanted.incarnation
        self._is_loan = wanted.is_loan
        self._hashes = deque(BlockHash(raw) for raw in wanted.hashes)
        self._begun: Block | None = None
        """The first of `_hashes`, if some of it is sent."""
        self._offset = 0
        self.bytes = 0
        """Sent."""

    @property
    def is_over(self) -> bool:
        return not self._hashes

    def next_part(self) -> bytes:
        """As many whole blocks as come closest to a part's size, or a piece of a larger one; refusals for those that
        are not for the asker."""
        pieces, contents, size = [], [], 0
        most = min(self._shelf.block_bytes, PART_BYTES)
        while self._hashes and (not size or size + most // 2 <= PART_BYTES):
            piece, content = self._next_piece(most)
            pieces.append(piece)
            contents.append(content)
            size += content.nbytes
        self.bytes += size
        return packed(pieces, contents)

    def _next_piece(self, most: int) -> tuple[kvstore_pb2.Piece, memoryview]:
        block_hash = self._hashes[0]
        try:
            block = self._readable(block_hash)
        except (StaleHandoff, KVMissing) as error:
            self._go_on()
            return kvstore_pb2.Piece(hash=block_hash, refusal=error.reason), memoryview(b"")
        offset = self._offset
        content = self._shelf.view(block, offset, most)
        self._begun, self._offset = block, offset + content.nbytes
        if self._offset == self._shelf.block_bytes:
            self._go_on()
        piece = kvstore_pb2.Piece(hash=block_hash, offset=offset, size=content.nbytes, checksum=block.checksum)
        return piece, content

    def _readable(self, block_hash: BlockHash) -> Block:
        exchange = self._shelf.exchange
        block = exchange.readable(self._key, self._incarnation, block_hash, is_loan=self._is_loan)
        if self._begun not in (None, block):
            raise StaleHandoff("the block has begun another life")
        return block

    def _go_on(self) -> None:
        self._hashes.popleft()
        self._begun, self._offset = None, 0
