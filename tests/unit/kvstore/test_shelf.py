"""Streams of puts and pulls against a shelf, without a network."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from services.core.errors import DiptychError, InvalidRequest, KVIncompatible, KVMissing
from services.core.handoff import Party
from services.core.ids import BlockHash, RequestId, RequestKey
from services.core.model_config import KVFormat
from services.kvstore.arena import Arena
from services.kvstore.exchange import Offer
from services.kvstore.notices import Available, Notice
from services.kvstore.outflow import Outflow
from services.kvstore.shelf import Intake, Shelf
from services.pb.kvstore_pb2 import BlockHeader, HandoffKey, Part, PullOpen, PutPart
from services.runtime.dial import PART_BYTES

FORMAT = KVFormat("float32", block_size=16, layers=40, kv_heads=4, head_dim=64)
KEY = RequestKey(RequestId("r"))
HANDOFF = HandoffKey(request_id="r")
WRITER, READER = Party(1, "w"), Party(2, "r")
X, Y = BlockHash(b"x"), BlockHash(b"y")
CONTENT = bytes(range(256)) * (FORMAT.block_bytes // 256)


def header(block_hash: BlockHash = X, size: int = len(CONTENT), checksum: int | None = None) -> PutPart:
    checksum = xxhash.xxh3_64_intdigest(CONTENT) if checksum is None else checksum
    return PutPart(header=BlockHeader(handoff=HANDOFF, incarnation="w", hash=block_hash, size=size, checksum=checksum))


def block(block_hash: BlockHash = X, checksum: int | None = None) -> list[PutPart]:
    parts = [PutPart(bytes=CONTENT[start : start + PART_BYTES]) for start in range(0, len(CONTENT), PART_BYTES)]
    return [header(block_hash, checksum=checksum), *parts]


class World:
    """A shelf on which X and Y are awaited, and one stream of puts."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.shelf = Shelf("weights", str(FORMAT), arena)
        self.notices: list[Notice] = []
        self.shelf.exchange.claim(READER, KEY, 0.0)
        self.shelf.exchange.offer(WRITER, Offer(KEY, 0, [X, Y], is_complete=True), 0.0)
        self.intake = Intake(self.shelf, self.notices.extend)

    def put(self, *parts: PutPart) -> None:
        for part in parts:
            self.intake.take(part)

    def pull(self, *hashes: BlockHash) -> Iterator[Part]:
        pull = Outflow(self.shelf, PullOpen(handoff=HANDOFF, incarnation="r", hashes=hashes))
        while not pull.is_over:
            yield Part.FromString(pull.next_part())

    def refusals(self) -> list[tuple[bytes, str]]:
        return [(each.hash, each.reason) for each in self.intake.reply.refused]

    def ended(self) -> None:
        """The stream is over: nothing unfinished is left behind, and the reader is not left waiting."""
        self.intake.close()
        self.shelf.exchange.check_invariants()

    def awaited(self) -> set[BlockHash]:
        return {each.hash for each in self.shelf.exchange.index.lent()}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with Arena(tmp_path, 2 * FORMAT.block_bytes) as arena:
        yield World(arena)


def test_a_block_is_visible_when_its_last_part_is_verified_and_not_before(world: World) -> None:
    first, *rest = block()
    world.put(first, rest[0])
    with pytest.raises(KVMissing):
        world.shelf.exchange.readable(KEY, "r", X)
    world.put(*rest[1:])
    assert [each.blocks[0].hash for each in world.notices if isinstance(each, Available)] == [X]
    world.ended()
    parts = list(world.pull(X))
    pieces = [piece for part in parts for piece in part.pieces]
    assert [(piece.hash, piece.offset) for piece in pieces] == [(X, 0), (X, PART_BYTES)]
    assert {piece.checksum for piece in pieces} == {xxhash.xxh3_64_intdigest(CONTENT)}
    assert b"".join(part.bytes for part in parts) == CONTENT
    assert max(len(part.bytes) for part in parts) <= PART_BYTES


@pytest.mark.parametrize(
    ("parts", "error", "still_awaited"),
    [
        ([PutPart(bytes=b"x")], InvalidRequest, {X, Y}),
        ([PutPart()], InvalidRequest, {X, Y}),
        ([header(size=8)], KVIncompatible, {X, Y}),
        ([header(), PutPart(bytes=CONTENT + b"x")], InvalidRequest, {Y}),
        ([header(), header(Y)], InvalidRequest, {Y}),
    ],
    ids=["no header", "empty", "size", "too long", "header in a block"],
)
def test_a_stream_that_goes_wrong_leaves_nothing(
    parts: list[PutPart], error: type[DiptychError], still_awaited: set[BlockHash], world: World
) -> None:
    with pytest.raises(error):
        world.put(*parts)
    world.ended()
    assert world.awaited() == still_awaited
    with pytest.raises(KVMissing):
        world.shelf.exchange.readable(KEY, "r", X)


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (block(X, checksum=1), "KVCorrupt"),
        (block(BlockHash(b"never offered")), "StaleHandoff"),
    ],
    ids=["checksum", "not offered"],
)
def test_a_block_that_is_refused_does_not_keep_the_next_one_out(
    refused: list[PutPart], reason: str, world: World
) -> None:
    world.put(*refused, *block(Y))
    world.intake.finish()
    world.ended()
    assert world.refusals() == [(refused[0].header.hash, reason)]
    assert world.intake.reply.sealed == 1
    assert world.shelf.exchange.readable(KEY, "r", Y).is_sealed
    assert Y not in world.awaited()


def test_a_stream_that_ends_inside_a_block_gives_it_up(world: World) -> None:
    world.put(*block(X), header(Y))
    with pytest.raises(InvalidRequest):
        world.intake.finish()
    world.ended()
    assert world.awaited() == set()
    assert world.notices[-1] == Available(READER, KEY, (), is_complete=True)
    assert Available(READER, KEY, never=(Y,)) in world.notices


def test_bytes_that_come_after_the_hand_over_ended_do_not_touch_the_page(world: World) -> None:
    world.put(header())
    world.shelf.exchange.release(READER, KEY)
    world.put(PutPart(bytes=CONTENT))
    world.intake.finish()
    world.ended()
    assert world.refusals() == [(X, "StaleHandoff")]
    assert not any(world.arena.read(0, world.arena.size))


def test_a_pull_stops_sending_a_block_where_the_hand_over_ends(world: World) -> None:
    world.put(*block(X))
    parts = world.pull(X)
    assert next(parts).bytes
    world.shelf.exchange.lost(READER)
    (last,) = parts
    assert [(piece.hash, piece.refusal) for piece in last.pieces] == [(X, "StaleHandoff")]
    assert not last.bytes


def test_a_pull_says_what_is_not_there_and_goes_on(world: World) -> None:
    world.put(*block(Y))
    parts = list(world.pull(X, Y))
    assert [(piece.hash, piece.refusal) for piece in parts[0].pieces] == [(X, "KVMissing"), (Y, "")]
    assert b"".join(part.bytes for part in parts) == CONTENT


def test_small_blocks_travel_together_and_whole(tmp_path: Path) -> None:
    small = KVFormat("float32", block_size=16, layers=10, kv_heads=4, head_dim=64)
    names = [BlockHash(b"%d" % n) for n in range(7)]
    with Arena(tmp_path, 8 * small.block_bytes) as arena:
        shelf = Shelf("weights", str(small), arena)
        shelf.exchange.claim(READER, KEY, 0.0)
        shelf.exchange.offer(WRITER, Offer(KEY, 0, names, is_complete=True), 0.0)
        for each in list(shelf.exchange.index.lent()):
            shelf.write(each, 0, each.hash * small.block_bytes)
            shelf.exchange.seal(each, shelf.checksum(each))
        pull = Outflow(shelf, PullOpen(handoff=HANDOFF, incarnation="r", hashes=names))
        sizes = []
        while not pull.is_over:
            part = Part.FromString(pull.next_part())
            assert {piece.size for piece in part.pieces} == {small.block_bytes}
            assert part.bytes == b"".join(piece.hash * small.block_bytes for piece in part.pieces)
            sizes.append(len(part.pieces))
        assert sizes == [3, 3, 1]
        assert pull.bytes == 7 * small.block_bytes


def test_a_page_that_was_scribbled_on_is_not_good(world: World) -> None:
    world.put(*block(X))
    kept = world.shelf.exchange.readable(KEY, "r", X)
    assert world.shelf.is_good(kept)
    world.shelf.write(kept, 5, b"scribble")
    assert not world.shelf.is_good(kept)


def test_a_block_larger_than_the_arena_is_refused(tmp_path: Path) -> None:
    with Arena(tmp_path, FORMAT.block_bytes - 4096) as arena, pytest.raises(KVIncompatible):
        Shelf("weights", str(FORMAT), arena)
