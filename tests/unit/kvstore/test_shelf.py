"""Streams of puts and gets against a shelf, without a network."""

import pytest
import xxhash

from services.core.errors import DiptychError, InvalidRequest, KVCorrupt, KVIncompatible, KVMissing, StaleHandoff
from services.core.handoff import Party
from services.core.ids import BlockHash, RequestId, RequestKey
from services.core.model_config import KVFormat
from services.kvstore.exchange import Offer
from services.kvstore.notices import Available, Notice
from services.kvstore.shelf import Intake, Shelf
from services.kvstore.storage import Storage
from services.pb.kvstore_pb2 import BlockHeader, GetRequest, HandoffKey, PutPart
from services.runtime.dial import PART_BYTES

FORMAT = KVFormat("float32", block_size=16, layers=40, kv_heads=4, head_dim=64)
KEY = RequestKey(RequestId("r"))
HANDOFF = HandoffKey(request_id="r")
WRITER, READER = Party(1, "w"), Party(2, "r")
X, Y = BlockHash(b"x"), BlockHash(b"y")
CONTENT = bytes(range(256)) * (FORMAT.block_bytes // 256)


class World:
    """A shelf on which X and Y are awaited, and one stream of puts."""

    def __init__(self) -> None:
        self.shelf = Shelf("weights", str(FORMAT), 2)
        self.notices: list[Notice] = []
        self.shelf.exchange.claim(READER, KEY, 0.0)
        self.shelf.exchange.offer(WRITER, Offer(KEY, 0, [X, Y], is_complete=True), 0.0)
        self.intake = Intake(self.shelf, self.notices.extend)

    def header(self, block_hash: BlockHash = X, size: int = len(CONTENT), checksum: int | None = None) -> PutPart:
        checksum = xxhash.xxh3_64_intdigest(CONTENT) if checksum is None else checksum
        return PutPart(
            header=BlockHeader(handoff=HANDOFF, incarnation="w", hash=block_hash, size=size, checksum=checksum)
        )

    def put(self, block_hash: BlockHash) -> None:
        self.intake.take(self.header(block_hash))
        for start in range(0, len(CONTENT), PART_BYTES):
            self.intake.take(PutPart(bytes=CONTENT[start : start + PART_BYTES]))

    def ended(self) -> None:
        """The stream is over: nothing unfinished is left behind, and the reader is not left waiting."""
        self.intake.close()
        exchange = self.shelf.exchange
        exchange.check_invariants()
        assert exchange.index.num_writing == 0


def test_a_block_is_visible_when_its_last_part_is_verified_and_not_before() -> None:
    world = World()
    world.intake.take(world.header())
    world.intake.take(PutPart(bytes=CONTENT[:PART_BYTES]))
    with pytest.raises(KVMissing):
        world.shelf.exchange.readable(KEY, "r", X)
    world.intake.take(PutPart(bytes=CONTENT[PART_BYTES:]))
    assert world.notices == [Available(READER, KEY, ((0, X),))]
    world.ended()
    parts = list(world.shelf.parts(GetRequest(handoff=HANDOFF, incarnation="r", hashes=[X])))
    assert (parts[0].header.hash, parts[0].header.size) == (X, len(CONTENT))
    assert parts[0].header.checksum == xxhash.xxh3_64_intdigest(CONTENT)
    assert b"".join(part.bytes for part in parts[1:]) == CONTENT
    assert max(len(part.bytes) for part in parts) <= PART_BYTES


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ([PutPart(bytes=b"x")], InvalidRequest),
        ([PutPart()], InvalidRequest),
        ([World().header(size=8)], KVIncompatible),
        ([World().header(checksum=1), PutPart(bytes=CONTENT)], KVCorrupt),
        ([World().header(), PutPart(bytes=CONTENT + b"x")], InvalidRequest),
        ([World().header(), World().header(Y)], InvalidRequest),
        ([World().header(BlockHash(b"never offered"))], StaleHandoff),
    ],
    ids=["no header", "empty", "size", "checksum", "too long", "header in a block", "not offered"],
)
def test_a_stream_that_goes_wrong_leaves_nothing(parts: list[PutPart], error: type[DiptychError]) -> None:
    world = World()
    with pytest.raises(error):
        for part in parts:
            world.intake.take(part)
    world.ended()
    with pytest.raises(KVMissing):
        world.shelf.exchange.readable(KEY, "r", X)


def test_a_stream_that_ends_inside_a_block_gives_it_up() -> None:
    world = World()
    world.put(X)
    world.intake.take(world.header(Y))
    with pytest.raises(InvalidRequest):
        world.intake.finish()
    world.ended()
    assert world.notices[-1] == Available(READER, KEY, (), True)


def test_bytes_that_come_after_the_hand_over_ended_do_not_touch_the_page() -> None:
    world = World()
    world.intake.take(world.header())
    world.shelf.exchange.release(READER, KEY)
    with pytest.raises(StaleHandoff):
        world.intake.take(PutPart(bytes=CONTENT))
    world.ended()
    assert world.shelf.storage.read(0, 0, 16) == bytes(16)


def test_a_get_stops_where_the_hand_over_ends() -> None:
    world = World()
    world.put(X)
    parts = world.shelf.parts(GetRequest(handoff=HANDOFF, incarnation="r", hashes=[X]))
    next(parts)
    next(parts)
    world.shelf.exchange.lost(READER)
    with pytest.raises(StaleHandoff):
        next(parts)


def test_pages_do_not_overlap() -> None:
    storage = Storage(page_bytes=4, num_pages=3)
    storage.write(1, 0, b"ab")
    storage.write(1, 2, b"cd")
    storage.write(2, 0, b"efgh")
    assert [storage.read(page, 0, 9) for page in range(3)] == [bytes(4), b"abcd", b"efgh"]
    assert storage.checksum(1) == xxhash.xxh3_64_intdigest(b"abcd")
    with pytest.raises(ValueError, match="beyond"):
        storage.write(0, 2, b"xyz")
