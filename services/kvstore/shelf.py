"""All blocks of one model and one KV format: hand-overs, index and pages, and how the bytes of far writers come in.

One store has one shelf at a time: what the first session says is what all others must say, until no session is left;
then the next may bring another model or format, and what was cached under the old one is dropped.
"""

from collections.abc import Callable

from services.core.errors import (
    DiptychError,
    InvalidRequest,
    KVCorrupt,
    KVIncompatible,
    Overloaded,
    StaleHandoff,
)
from services.core.ids import BlockHash
from services.core.model_config import KVFormat
from services.kvstore.arena import ALIGNMENT, Arena
from services.kvstore.block import Block
from services.kvstore.block_index import BlockIndex
from services.kvstore.exchange import Exchange
from services.kvstore.notices import Notice
from services.pb import kvstore_pb2
from services.runtime.codec import key_from_pb

Post = Callable[[list[Notice]], None]


class Shelf:
    """An arena cut into pages for blocks of one fingerprint and format."""

    def __init__(self, fingerprint: str, kv_format: str, arena: Arena) -> None:
        """Raises KVIncompatible for a format that is not known, or whose blocks are larger than the arena."""
        self.fingerprint = fingerprint
        self.format = kv_format
        self.block_bytes = KVFormat.parsed(kv_format).block_bytes
        self.stride = -(-self.block_bytes // ALIGNMENT) * ALIGNMENT
        """From the beginning of a page to that of the next."""
        if self.stride > arena.size:
            raise KVIncompatible("a block is larger than the arena of the store", field="format")
        self.exchange = Exchange(BlockIndex(arena.size // self.stride))
        self._arena = arena

    def is_good(self, block: Block) -> bool:
        """Whether a sealed block's page matches its checksum."""
        return self.checksum(block) == block.checksum

    def checksum(self, block: Block) -> int:
        """xxh3-64 of what stands in its page."""
        return self._arena.checksum(block.grant.page * self.stride, self.block_bytes)

    def write(self, block: Block, offset: int, part: bytes) -> None:
        """Copies `part` into the block's page."""
        self._arena.write(block.grant.page * self.stride + offset, part)

    def view(self, block: Block, offset: int, most: int) -> memoryview:
        """The block's bytes from `offset` on, at most so many; to be copied before the next await."""
        count = min(most, self.block_bytes - offset)
        return self._arena.read(block.grant.page * self.stride + offset, count)

    def drain_changes(self) -> tuple[list[BlockHash], list[BlockHash]]:
        """(sealed, gone) since the last call."""
        return self.exchange.index.drain_changes()


class Intake:
    """One stream of puts: blocks one after the other. Whatever ends it, a block that is not whole leaves nothing.

    A block that is refused does not end the stream: its bytes are passed over.
    """

    def __init__(self, shelf: Shelf, post: Post) -> None:
        self._shelf = shelf
        self._post = post
        self._header: kvstore_pb2.BlockHeader | None = None
        """Of the block whose bytes come now."""
        self._block: Block | None = None
        """Where they go; None if it was refused."""
        self._filled = 0
        self.reply = kvstore_pb2.PutReply()
        """What has become of the blocks so far."""

    def take(self, part: kvstore_pb2.PutPart) -> None:
        """The next message of the stream. Raises KVIncompatible or InvalidRequest; the stream is over then."""
        match part.WhichOneof("kind"):
            case "header":
                self._begin(part.header)
            case "bytes":
                self._fill(part.bytes)
            case None:
                raise InvalidRequest("a part is empty")

    def finish(self) -> None:
        """The stream ended in good order. Raises InvalidRequest if that is inside a block."""
        if self._header is not None:
            raise InvalidRequest("the stream ended inside a block")

    def close(self) -> None:
        """To be called on every exit."""
        block, self._block = self._block, None
        if block is not None:
            self._post(self._shelf.exchange.give_up(block))

    def _begin(self, header: kvstore_pb2.BlockHeader) -> None:
        if self._header is not None:
            raise InvalidRequest("a block begins inside another")
        if header.size != self._shelf.block_bytes:
            raise KVIncompatible("the block has another size than the format says", field="size")
        self._header, self._filled = header, 0
        try:
            key, block_hash = key_from_pb(header.handoff), BlockHash(header.hash)
            self._block = self._shelf.exchange.begin(key, header.incarnation, block_hash)
        except (StaleHandoff, Overloaded) as error:
            self._refuse(error)

    def _fill(self, part: bytes) -> None:
        header, block = self._header, self._block
        if header is None:
            raise InvalidRequest("bytes came without a header")
        if self._filled + len(part) > header.size:
            raise InvalidRequest("a block has more bytes than its header says")
        if block is not None and not block.is_in_writing:
            self._refuse(StaleHandoff("the hand-over ended while the block was written"))
        elif block is not None:
            self._shelf.write(block, self._filled, part)
        self._filled += len(part)
        if self._filled == header.size:
            self._end(header)
            self._header = None

    def _end(self, header: kvstore_pb2.BlockHeader) -> None:
        """All bytes of a block have come."""
        block = self._block
        if block is None:
            return
        if self._shelf.checksum(block) != header.checksum:
            self._refuse(KVCorrupt("a block does not match its checksum"))
            return
        self._block = None
        self.reply.sealed += 1
        self._post(self._shelf.exchange.seal(block, header.checksum))

    def _refuse(self, error: DiptychError) -> None:
        if self._header is not None:
            self.reply.refused.add(hash=self._header.hash, reason=error.reason, message=error.message)
        self.close()
