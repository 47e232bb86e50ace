"""All blocks of one model and one KV format: hand-overs, index and bytes, and the two ways bytes move.

One store has one shelf at a time: what the first session says is what all others must say, until no session is left;
then the next may bring another model or format, and what was cached under the old one is dropped.
"""

from collections.abc import Callable, Iterator

from services.core.errors import InvalidRequest, KVCorrupt, KVIncompatible, Overloaded, StaleHandoff
from services.core.ids import BlockHash, RequestKey
from services.core.model_config import KVFormat
from services.kvstore.block_index import Block, BlockIndex, BlockState
from services.kvstore.exchange import Exchange
from services.kvstore.notices import Notice
from services.kvstore.storage import Storage
from services.pb import kvstore_pb2
from services.runtime.codec import handoff_to_pb, key_from_pb
from services.runtime.dial import PART_BYTES

Post = Callable[[list[Notice]], None]


class Shelf:
    """Room for `capacity` blocks of one fingerprint and format."""

    def __init__(self, fingerprint: str, kv_format: str, capacity: int) -> None:
        """Raises KVIncompatible for a format that is not known."""
        self.fingerprint = fingerprint
        self.format = kv_format
        self.exchange = Exchange(BlockIndex(capacity))
        self.storage = Storage(KVFormat.parsed(kv_format).block_bytes, capacity)

    def parts(self, request: kvstore_pb2.GetRequest) -> Iterator[kvstore_pb2.GetPart]:
        """The blocks asked for, each a header and its bytes in parts.

        The hand-over is looked at again before every part, so that a page which was let go meanwhile is never read:
        raises StaleHandoff or KVMissing then.
        """
        key = key_from_pb(request.handoff)
        for raw in request.hashes:
            block_hash = BlockHash(raw)
            block = self.exchange.readable(key, request.incarnation, block_hash)
            yield kvstore_pb2.GetPart(header=self._header(key, block))
            for offset in range(0, self.storage.page_bytes, PART_BYTES):
                block = self.exchange.readable(key, request.incarnation, block_hash)
                yield kvstore_pb2.GetPart(bytes=self.storage.read(block.page, offset, PART_BYTES))

    def _header(self, key: RequestKey, block: Block) -> kvstore_pb2.BlockHeader:
        return kvstore_pb2.BlockHeader(
            handoff=handoff_to_pb(key), hash=block.hash, size=self.storage.page_bytes, checksum=block.checksum
        )


class Intake:
    """One stream of puts: blocks one after the other. Whatever ends it, a block that is not whole leaves nothing."""

    def __init__(self, shelf: Shelf, post: Post) -> None:
        self._shelf = shelf
        self._post = post
        self._block: Block | None = None
        self._checksum = 0
        self._filled = 0
        self.sealed = 0
        """Blocks that are readable now."""

    def take(self, part: kvstore_pb2.PutPart) -> None:
        """The next message of the stream.

        Raises StaleHandoff, Overloaded, KVCorrupt, KVIncompatible or InvalidRequest; the stream is over then.
        """
        match part.WhichOneof("kind"):
            case "header":
                self._begin(part.header)
            case "bytes":
                self._fill(part.bytes)
            case None:
                raise InvalidRequest("a part is empty")

    def finish(self) -> None:
        """The stream ended in good order. Raises InvalidRequest if that is inside a block."""
        if self._block is not None:
            raise InvalidRequest("the stream ended inside a block")

    def close(self) -> None:
        """To be called on every exit."""
        block, self._block = self._block, None
        if block is not None and block.state is BlockState.WRITING:
            self._post(self._shelf.exchange.give_up(block.writer, block.hash))

    def _begin(self, header: kvstore_pb2.BlockHeader) -> None:
        if self._block is not None:
            raise InvalidRequest("a block begins inside another")
        key, block_hash = key_from_pb(header.handoff), BlockHash(header.hash)
        exchange, storage = self._shelf.exchange, self._shelf.storage
        try:
            self._block = exchange.begin(key, header.incarnation, block_hash)
        except Overloaded:
            # The hand-over will not see this block: its reader must not wait for it.
            self._post(exchange.give_up(key, block_hash))
            raise
        if header.size != storage.page_bytes:
            raise KVIncompatible("the block has another size than the format says", field="size")
        self._checksum, self._filled = header.checksum, 0

    def _fill(self, part: bytes) -> None:
        block, storage = self._block, self._shelf.storage
        if block is None:
            raise InvalidRequest("bytes came without a header")
        if block.state is not BlockState.WRITING:
            raise StaleHandoff("the hand-over ended while the block was written")
        if self._filled + len(part) > storage.page_bytes:
            raise InvalidRequest("a block has more bytes than its header says")
        storage.write(block.page, self._filled, part)
        self._filled += len(part)
        if self._filled == storage.page_bytes:
            self._seal(block)

    def _seal(self, block: Block) -> None:
        if self._shelf.storage.checksum(block.page) != self._checksum:
            raise KVCorrupt("a block does not match its checksum")
        self._block = None
        self.sealed += 1
        self._post(self._shelf.exchange.seal(block, self._checksum))
