"""Hand-overs through a real kvstore over gRPC: both orders, sharing, small stores, corruption and every loss."""

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial

import grpc.aio
import pytest
import xxhash

from services.core.errors import DiptychError, KVCorrupt, KVMissing, Overloaded, StaleHandoff, WorkerLost
from services.core.ids import BlockHash, BlockId
from services.core.model_config import WHOLE
from services.pb import kvstore_pb2, kvstore_pb2_grpc, session_pb2
from services.runtime import dial
from services.runtime.codec import handoff_to_pb
from services.runtime.edge import remote_errors
from services.runtime.session import PROTOCOL
from tests.support import kv_world
from tests.support.kv_world import (
    PATIENCE,
    SMALL,
    TWO_PARTS,
    MakeWorker,
    Memory,
    content_of,
    free_port,
    hashes,
    key,
    kvstore,
    sealed,
    wanted,
    within,
)

Up, Down = kvstore_pb2.StoreUp, kvstore_pb2.StoreDown


@pytest.fixture(params=["near", "far"])
def worker(request: pytest.FixtureRequest) -> MakeWorker:
    """Workers that have the store's arena mapped, and such as have not."""
    return partial(kv_world.worker, attach=request.param == "near")


def copies(source: Memory, target: Memory, count: int) -> bool:
    return all(target.blocks[BlockId(100 + n)] == source.blocks[BlockId(n)] for n in range(count))


class RawWorker:
    """A worker spoken by hand, so that it can misbehave and die."""

    def __init__(self, address: str, incarnation: str = "raw-life") -> None:
        self.incarnation = incarnation
        self.channel = dial.channel(address)
        self.stub = kvstore_pb2_grpc.KVStoreStub(self.channel)
        self.session = self.stub.Open()

    async def open(self) -> None:
        hello = session_pb2.Hello(
            protocol=PROTOCOL, name="raw", incarnation=self.incarnation, fingerprint="weights", format=str(SMALL)
        )
        await self.session.write(Down(hello=hello))
        await self.hear("hello")
        await self.hear("arena")

    async def hear(self, kind: str) -> kvstore_pb2.StoreUp:
        """The next message that is no tick."""
        async with asyncio.timeout(5):
            while (message := await self.session.read()).WhichOneof("kind") == "tick":
                pass
        assert message.WhichOneof("kind") == kind
        return message

    async def offer(self, block_hashes: list[BlockHash]) -> list[bytes]:
        offer = kvstore_pb2.Offer(handoff=handoff_to_pb(key()), hashes=block_hashes)
        await self.session.write(Down(offer=offer))
        return [grant.hash for grant in (await self.hear("wanted")).wanted.grants]

    def header(self, block_hash: BlockHash, content: bytes, checksum: int | None = None) -> kvstore_pb2.PutPart:
        return kvstore_pb2.PutPart(
            header=kvstore_pb2.BlockHeader(
                handoff=handoff_to_pb(key()),
                incarnation=self.incarnation,
                hash=block_hash,
                size=len(content),
                checksum=xxhash.xxh3_64_intdigest(content) if checksum is None else checksum,
            )
        )

    async def put(self, *parts: kvstore_pb2.PutPart) -> list[str]:
        """Why blocks were refused."""
        with remote_errors():
            reply = await self.stub.Put(iter(parts))
        return [refusal.reason for refusal in reply.refused]

    async def die(self) -> None:
        await self.channel.close()


async def test_what_is_put_is_got_bit_for_bit(worker: MakeWorker) -> None:
    names = hashes(3)
    async with (
        kvstore(kv_format=TWO_PARTS) as store,
        worker(store.address, TWO_PARTS) as prefill,
        worker(store.address, TWO_PARTS) as decode,
    ):
        reading = decode.claim(key())
        reading.fetch.want(wanted(names), time.monotonic())
        published = await prefill.publish_all(key(), names)
        fetched = await within(reading.no_more)
        assert (published.blocks, published.skipped, published.error) == (3, 0, None)
        assert published.bytes == fetched.bytes == 3 * TWO_PARTS.block_bytes
        assert (fetched.landed, fetched.error) == (3, None)
        assert sorted(reading.landed.get_nowait() for _ in range(3)) == [0, 1, 2]
        assert copies(prefill.memory, decode.memory, 3)
        await store.let_go()
        assert (await store.load()).blocks_cached == 3


async def test_a_claim_may_come_after_everything_is_put_and_released(worker: MakeWorker) -> None:
    names = hashes(4)
    async with kvstore() as store, worker(store.address) as prefill, worker(store.address) as decode:
        await prefill.publish_all(key(), names)
        await store.let_go()
        reading = decode.claim(key())
        reading.fetch.want(wanted(names), time.monotonic())
        assert (await within(reading.no_more)).error is None
        assert copies(prefill.memory, decode.memory, 4)


async def test_blocks_arrive_chunk_by_chunk_while_the_writer_still_computes(worker: MakeWorker) -> None:
    names = hashes(4)
    async with kvstore() as store, worker(store.address) as prefill, worker(store.address) as decode:
        prefill.memory.fill(names)
        reading, writing = decode.claim(key()), prefill.publish(key())
        reading.fetch.want(wanted(names), time.monotonic())
        writing.publication.add(sealed(names[:2]))
        assert {await reading.landed.get(), await reading.landed.get()} == {0, 1}
        assert not reading.no_more.done()
        writing.publication.add(sealed(names[2:], first=2))
        writing.publication.finish()
        fetched = await within(reading.no_more)
        assert (fetched.landed, fetched.error) == (4, None)
        assert copies(prefill.memory, decode.memory, 4)


async def test_a_second_request_with_the_same_prefix_sends_no_bytes_for_it(worker: MakeWorker) -> None:
    first, second = hashes(3), [*hashes(3), BlockHash(b"more")]
    async with kvstore() as store, worker(store.address) as prefill, worker(store.address) as decode:
        await prefill.publish_all(key("a"), first)
        published = await prefill.publish_all(key("b"), second)
        assert (published.blocks, published.skipped, published.bytes) == (4, 3, SMALL.block_bytes)
        reading = decode.claim(key("b"))
        reading.fetch.want(wanted(second), time.monotonic())
        assert (await within(reading.no_more)).landed == 4


async def test_two_attempts_of_a_request_stand_side_by_side(worker: MakeWorker) -> None:
    names = hashes(2)
    async with kvstore() as store, worker(store.address) as prefill, worker(store.address) as decode:
        prefill.memory.fill(names)
        old = prefill.publish(key("r", 0))
        old.publication.add(sealed(names))
        new_reading = decode.claim(key("r", 1))
        new_reading.fetch.want(wanted(names), time.monotonic())
        assert (await prefill.publish_all(key("r", 1), names)).error is None
        assert (await within(new_reading.no_more)).landed == 2
        assert {(each.kind, each.attempt) for each in prefill.client.holdings()} == {("publication", 0)}
        old.publication.abort()
        await store.let_go()
        assert sorted(old.done) == [0, 1]


async def test_a_waiting_writer_takes_over_when_the_first_one_dies(worker: MakeWorker) -> None:
    names = hashes(2)
    async with kvstore() as store, worker(store.address) as prefill, worker(store.address) as decode:
        first = RawWorker(store.address)
        await first.open()
        assert await first.offer(names) == names
        reading = decode.claim(key("b"))
        reading.fetch.want(wanted(names), time.monotonic())
        prefill.memory.fill(names)
        writing = prefill.publish(key("b"))
        writing.publication.add(sealed(names))
        writing.publication.finish()
        while not [holding for holding in await store.holdings() if holding.request_id == "b" and holding.count == 2]:
            pass
        assert not writing.done
        await first.die()
        published = await within(writing.published)
        assert (published.blocks, published.bytes, published.error) == (2, 2 * SMALL.block_bytes, None)
        assert (await within(reading.no_more)).landed == 2


async def test_a_waiting_writer_sends_nothing_when_the_first_one_seals(worker: MakeWorker) -> None:
    (name,) = hashes(1)
    content = bytes(SMALL.block_bytes)
    async with kvstore() as store, worker(store.address) as prefill:
        first = RawWorker(store.address)
        await first.open()
        await first.offer([name])
        prefill.memory.fill([name])
        writing = prefill.publish(key("b"))
        writing.publication.add(sealed([name]))
        writing.publication.finish()
        while len({holding.request_id for holding in await store.holdings()}) < 2:
            pass
        await first.put(first.header(name, content), kvstore_pb2.PutPart(bytes=content))
        published = await within(writing.published)
        assert (published.blocks, published.skipped, published.bytes) == (1, 1, 0)
        assert prefill.memory.reads == 0
        await first.die()


async def test_a_corrupt_block_is_refused_and_the_reader_is_told(worker: MakeWorker) -> None:
    names, content = hashes(2), bytes(SMALL.block_bytes)
    async with kvstore() as store, worker(store.address) as decode:
        reading = decode.claim(key())
        reading.fetch.want(wanted(names), time.monotonic())
        writer = RawWorker(store.address)
        await writer.open()
        await writer.offer(names)
        await writer.put(writer.header(names[0], content), kvstore_pb2.PutPart(bytes=content))
        reasons = await writer.put(writer.header(names[1], content, checksum=1), kvstore_pb2.PutPart(bytes=content))
        assert reasons == ["KVCorrupt"]
        await writer.session.write(Down(offer=kvstore_pb2.Offer(handoff=handoff_to_pb(key()), complete=True)))
        fetched = await within(reading.no_more)
        assert (fetched.landed, type(fetched.error)) == (1, KVMissing)
        await writer.die()
        await store.let_go()
        assert (await store.load()).blocks_cached == 1


class WrongStore(kvstore_pb2_grpc.KVStoreServicer):
    """Says that two blocks are there and answers every pull with the same parts."""

    def __init__(self, answers: list[kvstore_pb2.Part]) -> None:
        self._answers = answers

    async def Open(
        self, request_iterator: AsyncIterator[kvstore_pb2.StoreDown], context: object
    ) -> AsyncIterator[kvstore_pb2.StoreUp]:
        yield Up(hello=session_pb2.Hello(protocol=PROTOCOL, name="wrong", incarnation="w"))
        yield Up(arena=kvstore_pb2.Arena())
        async for message in request_iterator:
            if message.WhichOneof("kind") == "claim":
                blocks = [kvstore_pb2.BlockRef(index=n, hash=each) for n, each in enumerate(hashes(2))]
                available = kvstore_pb2.Available(handoff=message.claim.handoff, blocks=blocks, complete=True)
                yield Up(available=available)

    async def Pull(
        self, request_iterator: AsyncIterator[kvstore_pb2.PullDown], context: object
    ) -> AsyncIterator[kvstore_pb2.Part]:
        for answer in (*self._answers, kvstore_pb2.Part()):
            yield answer
        async for _ in request_iterator:
            pass


CONTENT = bytes(SMALL.block_bytes)
CHECKSUM = xxhash.xxh3_64_intdigest(CONTENT)
FIRST, SECOND = hashes(2)


def part(
    block_hash: BlockHash = SECOND,
    content: bytes = CONTENT,
    checksum: int = CHECKSUM,
    offset: int = 0,
    refusal: str = "",
) -> kvstore_pb2.Part:
    piece = kvstore_pb2.Piece(hash=block_hash, offset=offset, size=len(content), checksum=checksum, refusal=refusal)
    return kvstore_pb2.Part(pieces=[piece], bytes=content)


def half(number: int) -> kvstore_pb2.Part:
    middle = len(CONTENT) // 2
    return part(content=CONTENT[number * middle : (number + 1) * middle], offset=number * middle)


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([part(checksum=CHECKSUM ^ 1)], KVCorrupt),
        ([part(content=CONTENT[1:], checksum=xxhash.xxh3_64_intdigest(CONTENT[1:]))], KVMissing),
        ([part(content=CONTENT + b"x")], KVMissing),
        ([half(0), half(0)], KVMissing),
        ([half(1), half(0)], KVMissing),
        ([half(0), part(BlockHash(b"other"), CONTENT[:9]), half(1)], KVMissing),
        ([part(BlockHash(b"other"))], KVMissing),
        ([part(FIRST, bytes(reversed(CONTENT)), checksum=1)], KVMissing),
        ([part(content=b"", refusal="StaleHandoff")], StaleHandoff),
        ([kvstore_pb2.Part(pieces=[kvstore_pb2.Piece(hash=SECOND, size=9)], bytes=CONTENT)], KVCorrupt),
        ([kvstore_pb2.Part(bytes=CONTENT)], KVCorrupt),
        ([], KVMissing),
    ],
    ids=[
        "damaged",
        "too short",
        "too long",
        "a half twice",
        "halves in the wrong order",
        "something between the halves",
        "not asked for",
        "sent twice",
        "refused",
        "sizes that do not add up",
        "bytes without a piece",
        "missing",
    ],
)
async def test_a_block_that_comes_wrong_never_lands(answers: list[kvstore_pb2.Part], error: type[DiptychError]) -> None:
    server = grpc.aio.server()
    kvstore_pb2_grpc.add_KVStoreServicer_to_server(WrongStore([part(FIRST), *answers]), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with kv_world.worker(f"127.0.0.1:{port}") as decode:
            reading = decode.claim(key())
            reading.fetch.want(wanted(hashes(2)), time.monotonic())
            fetched = await within(reading.no_more)
            assert (fetched.landed, type(fetched.error)) == (1, error)
            assert reading.landed.get_nowait() == 0
            assert decode.memory.blocks == {100: CONTENT}
    finally:
        await server.stop(0)


async def test_a_writer_killed_in_the_middle_of_a_put_leaves_nothing_and_the_reader_goes_on(worker: MakeWorker) -> None:
    names, content = hashes(2), bytes(SMALL.block_bytes)
    async with kvstore() as store, worker(store.address) as decode:
        reading = decode.claim(key())
        reading.fetch.want(wanted(names), time.monotonic())
        writer = RawWorker(store.address)
        await writer.open()
        await writer.offer(names)
        await writer.put(writer.header(names[0], content), kvstore_pb2.PutPart(bytes=content))
        put = writer.stub.Put()
        await put.write(writer.header(names[1], content))
        await put.write(kvstore_pb2.PutPart(bytes=content[:100]))
        assert await reading.landed.get() == 0
        while (await store.load()).blocks_used < 2:
            pass
        await writer.die()
        fetched = await within(reading.no_more, seconds=1.0)
        assert (fetched.landed, type(fetched.error)) == (1, KVMissing)
        await store.let_go()
        load = await store.load()
        assert (load.blocks_used, load.blocks_cached) == (0, 1)


async def test_a_reader_that_is_gone_drops_the_pins_and_the_writer_is_refused(worker: MakeWorker) -> None:
    names = hashes(3)
    async with kvstore() as store, worker(store.address) as prefill:
        prefill.memory.fill(names)
        async with worker(store.address) as decode:
            reading = decode.claim(key())
            reading.fetch.want(wanted(names), time.monotonic())
            writing = prefill.publish(key())
            writing.publication.add(sealed(names[:2]))
            await reading.landed.get()
            await reading.landed.get()
            assert (await store.load()).blocks_used == 2
        assert (await within(reading.no_more)).landed == 2
        await store.let_go()
        writing.publication.add(sealed(names[2:], first=2))
        writing.publication.finish()
        published = await within(writing.published)
        assert isinstance(published.error, StaleHandoff)
        assert sorted(writing.done) == [0, 1, 2]
        assert (await store.load()).blocks_used == 0


async def test_a_late_put_for_a_closed_hand_over_is_stale(worker: MakeWorker) -> None:
    (name,), content = hashes(1), bytes(SMALL.block_bytes)
    async with kvstore() as store:
        writer = RawWorker(store.address)
        await writer.open()
        await writer.offer([name])
        async with worker(store.address) as decode:
            reading = decode.claim(key())
            reading.fetch.want(wanted([name]), time.monotonic())
            while not [holding for holding in await store.holdings() if holding.state == "joined"]:
                pass
            reading.fetch.release()
            await within(reading.no_more)
            closed = await writer.hear("closed")
            assert closed.closed.reason == "StaleHandoff"
        reasons = await writer.put(writer.header(name, content), kvstore_pb2.PutPart(bytes=content))
        assert reasons == ["StaleHandoff"]
        await writer.die()


async def test_another_life_of_a_process_may_neither_put_nor_get() -> None:
    (name,), content = hashes(1), bytes(SMALL.block_bytes)
    async with kvstore() as store:
        writer = RawWorker(store.address)
        await writer.open()
        await writer.offer([name])
        writer.incarnation = "an earlier life"
        reasons = await writer.put(writer.header(name, content), kvstore_pb2.PutPart(bytes=content))
        assert reasons == ["StaleHandoff"]
        pull = writer.stub.Pull()
        opening = kvstore_pb2.PullOpen(
            handoff=handoff_to_pb(key()), incarnation="an earlier life", hashes=[name], credit=1
        )
        await pull.write(kvstore_pb2.PullDown(open=opening))
        assert [piece.refusal for piece in (await pull.read()).pieces] == ["StaleHandoff"]
        await writer.die()


async def test_a_store_full_of_pinned_blocks_refuses_and_decode_computes_the_rest(worker: MakeWorker) -> None:
    async with kvstore(capacity=4) as store, worker(store.address) as prefill, worker(store.address) as decode:
        held = decode.claim(key("a"))
        while not [holding for holding in await store.holdings() if holding.state == "claimed"]:
            pass
        await prefill.publish_all(key("a"), hashes(3, "a"))
        reading = decode.claim(key("b"))
        reading.fetch.want(wanted(hashes(3, "b")), time.monotonic())
        published = await prefill.publish_all(key("b"), hashes(3, "b"))
        assert isinstance(published.error, Overloaded)
        fetched = await within(reading.no_more)
        assert (fetched.landed, type(fetched.error)) == (1, KVMissing)
        held.fetch.release()
        await store.let_go()
        assert (await prefill.publish_all(key("c"), hashes(4, "c"))).error is None
        await store.let_go()
        assert (await store.load()).blocks_cached == 4


async def test_a_store_that_is_killed_ends_both_sides_and_serves_again_when_it_is_back(worker: MakeWorker) -> None:
    names, port = hashes(2), free_port()
    async with worker(f"127.0.0.1:{port}") as prefill, worker(f"127.0.0.1:{port}") as decode:
        prefill.memory.fill(names)
        async with kvstore(port=port) as store:
            reading, writing = decode.claim(key("a")), prefill.publish(key("a"))
            reading.fetch.want(wanted(names), time.monotonic())
            writing.publication.add(sealed(names[:1]))
            await reading.landed.get()
            await store.kill()
            assert isinstance((await within(reading.no_more)).error, WorkerLost)
            await asyncio.wait([writing.publication.task], timeout=5)
            writing.publication.finish()
            assert isinstance((await within(writing.published)).error, WorkerLost)
            assert writing.done == [0]
        async with kvstore(port=port):
            await prefill.meets_its_store()
            await decode.meets_its_store()
            reading = decode.claim(key("b"))
            reading.fetch.want(wanted(names), time.monotonic())
            assert (await prefill.publish_all(key("b"), names)).error is None
            assert (await within(reading.no_more)).landed == 2


async def test_a_store_that_is_not_there_costs_a_moment_and_nothing_else(worker: MakeWorker) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    async with worker(nowhere) as prefill, worker(nowhere) as decode:
        reading = decode.claim(key())
        published = await prefill.publish_all(key(), hashes(2))
        assert isinstance(published.error, WorkerLost)
        reading.fetch.want(wanted(hashes(2)), time.monotonic())
        assert isinstance((await within(reading.no_more)).error, WorkerLost)


async def test_a_writer_that_cannot_reach_the_store_is_not_waited_for_once_it_is_done(worker: MakeWorker) -> None:
    async with kvstore() as store, worker(f"127.0.0.1:{free_port()}") as prefill, worker(store.address) as decode:
        reading = decode.claim(key())
        reading.fetch.want(wanted(hashes(1)), time.monotonic())
        assert isinstance((await prefill.publish_all(key(), hashes(1))).error, WorkerLost)
        assert not reading.no_more.done()
        reading.fetch.expect()
        assert isinstance((await within(reading.no_more)).error, KVMissing)


async def test_a_writer_that_has_come_is_waited_for_however_long_its_blocks_take(worker: MakeWorker) -> None:
    async with (
        kvstore() as store,
        worker(store.address, kv_put=2 * PATIENCE) as prefill,
        worker(store.address) as decode,
    ):
        reading = decode.claim(key())
        reading.fetch.want(wanted(hashes(1)), time.monotonic())
        reading.fetch.expect()
        await prefill.publish_all(key(), hashes(1))
        assert (await within(reading.no_more)).error is None


async def test_workers_of_another_model_or_format_are_refused(worker: MakeWorker) -> None:
    async with kvstore() as store, worker(store.address) as prefill, dial.channel(store.address) as channel:
        await prefill.publish_all(key("a"), hashes(1))
        for fingerprint, kv_format in (("other", str(SMALL)), ("weights", "float16/kt1/b16/l1/h1x2"), ("weights", "?")):
            session = kvstore_pb2_grpc.KVStoreStub(channel).Open()
            hello = session_pb2.Hello(protocol=PROTOCOL, name="x", fingerprint=fingerprint, format=kv_format)
            await session.write(Down(hello=hello))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await session.read()
            assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert (await prefill.publish_all(key("b"), hashes(1))).skipped == 1


async def test_the_next_worker_may_bring_another_model_when_all_have_left(worker: MakeWorker) -> None:
    async with kvstore(kv_format=TWO_PARTS) as store:
        async with worker(store.address, fingerprint="old") as old:
            await old.publish_all(key("a"), hashes(2))
        async with worker(store.address, fingerprint="new", kv_format=TWO_PARTS) as new:
            published = await new.publish_all(key("b"), hashes(2))
            assert (published.skipped, published.error) == (0, None)


async def test_a_cancelled_copy_returns_before_its_block_is_done(worker: MakeWorker) -> None:
    """The block that is being read when the request is dropped is let go only after the copy."""
    (name,) = hashes(1)
    is_reading, may_return = threading.Event(), threading.Event()

    class SlowMemory(Memory):
        def copy_out(self, block: BlockId, into: memoryview, part: slice = WHOLE) -> None:
            is_reading.set()
            may_return.wait(5)
            super().copy_out(block, into, part)

    async with kvstore() as store, worker(store.address, memory=SlowMemory(SMALL.block_bytes)) as prefill:
        prefill.memory.fill([name])
        writing = prefill.publish(key())
        writing.publication.add(sealed([name]))
        await asyncio.to_thread(is_reading.wait, 5)
        writing.publication.abort()
        with pytest.raises(TimeoutError):
            await within(asyncio.shield(writing.publication.task), seconds=0.1)
        assert writing.done == []
        may_return.set()
        await asyncio.wait([writing.publication.task])
        assert writing.done == [0]
        assert not writing.published.done()


async def test_an_end_that_is_given_up_before_it_began_is_settled_all_the_same(worker: MakeWorker) -> None:
    async with kvstore() as store, worker(store.address) as prefill, worker(store.address) as decode:
        prefill.memory.fill(hashes(1))
        writing, reading = prefill.publish(key()), decode.claim(key())
        writing.publication.add(sealed(hashes(1)))
        reading.fetch.want(wanted(hashes(1)), time.monotonic())
        writing.publication.abort()
        reading.fetch.release()
        assert (await within(reading.no_more)).landed == 0
        assert writing.done == [0]


async def test_what_becomes_of_blocks_is_counted(worker: MakeWorker) -> None:
    names = hashes(3)
    async with kvstore(capacity=3) as store, worker(store.address) as prefill, worker(store.address) as decode:
        await prefill.publish_all(key("a"), names[:2])
        reading = decode.claim(key("b"))
        reading.fetch.want(wanted([*names, BlockHash(b"too much")]), time.monotonic())
        while not [holding for holding in await store.holdings() if holding.state == "claimed"]:
            pass
        await prefill.publish_all(key("b"), [*names, BlockHash(b"too much")])
        await within(reading.no_more)
        (way,) = {"near"} if prefill.client.near_stores() else {"far"}
        assert prefill.counted("diptych_kv_blocks_total") == {
            f'{{outcome="sealed",way="{way}"}}': 3,
            f'{{outcome="skipped",way="{way}"}}': 2,
            f'{{outcome="refused",way="{way}"}}': 1,
        }
        assert decode.counted("diptych_kv_blocks_total") == {
            f'{{outcome="landed",way="{way}"}}': 3,
            f'{{outcome="missing",way="{way}"}}': 1,
        }
        size = SMALL.block_bytes
        assert prefill.counted("diptych_kv_bytes_total") == {f'{{direction="put",way="{way}"}}': 3 * size}
        assert decode.counted("diptych_kv_bytes_total") == {f'{{direction="get",way="{way}"}}': 3 * size}


async def test_a_request_that_wants_nothing_lets_go_at_once(worker: MakeWorker) -> None:
    async with kvstore() as store, worker(store.address) as decode:
        reading = decode.claim(key())
        since = time.monotonic()
        reading.fetch.want([], since)
        fetched = await within(reading.no_more)
        assert (fetched.landed, fetched.error, fetched.all_there_at) == (0, None, since)
        await store.let_go()


async def test_spans_of_the_store_are_children_of_the_workers(worker: MakeWorker) -> None:
    names, parent = hashes(2), "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
    async with kvstore() as store, worker(store.address) as prefill, worker(store.address) as decode:
        prefill.memory.fill(names)
        writing, reading = prefill.publish(key(), parent), decode.claim(key(), parent)
        writing.publication.add(sealed(names))
        writing.publication.finish()
        await within(writing.published)
        reading.fetch.want(wanted(names), time.monotonic())
        await within(reading.no_more)
        await store.let_go()
        (put,), (get,) = prefill.finished_spans("kv.put"), decode.finished_spans("kv.get")
        assert put.context.trace_id == get.context.trace_id == int("ab" * 16, 16)
        assert put.parent.span_id == get.parent.span_id == int("cd" * 8, 16)
        assert put.attributes == {
            "diptych.blocks": 2,
            "diptych.blocks_skipped": 0,
            "diptych.bytes": 2 * SMALL.block_bytes,
        }
        ours = {span.name: span for span in store.spans.get_finished_spans()}
        assert ours["kvstore.put"].parent.span_id == put.context.span_id
        assert ours["kvstore.put"].attributes["diptych.blocks"] == 2
        if "kvstore.get" in ours:
            # Only the bytes that the store itself sends.
            assert ours["kvstore.get"].parent.span_id == get.context.span_id
            assert ours["kvstore.get"].attributes["diptych.blocks"] == 2


async def test_time_is_accounted_to_the_put_while_a_block_is_awaited_and_to_the_get_afterwards(
    worker: MakeWorker,
) -> None:
    names = hashes(2)
    async with (
        kvstore() as store,
        worker(store.address, kv_put=0.3) as prefill,
        worker(store.address, kv_get=0.2) as decode,
    ):
        reading = decode.claim(key())
        since = time.monotonic()
        reading.fetch.want(wanted(names), since)
        await prefill.publish_all(key(), names)
        fetched = await within(reading.no_more)
        assert 0.3 <= fetched.all_there_at - since < 0.8
        assert 0.2 <= fetched.ended_at - fetched.all_there_at < 0.7


async def test_a_malformed_message_ends_its_session_and_no_other(worker: MakeWorker) -> None:
    async with kvstore() as store, worker(store.address) as prefill:
        await prefill.publish_all(key("a"), hashes(1))
        raw = RawWorker(store.address)
        await raw.open()
        await raw.session.write(Down(offer=kvstore_pb2.Offer(handoff=handoff_to_pb(key("b")), hashes=[b""])))
        async with asyncio.timeout(5):
            assert await raw.session.read() is grpc.aio.EOF
        assert (await prefill.publish_all(key("c"), hashes(1))).skipped == 1
        await raw.die()


async def test_a_draining_store_lets_hand_overs_end(worker: MakeWorker) -> None:
    names = hashes(2)
    async with kvstore() as store, worker(store.address) as prefill, worker(store.address) as decode:
        reading = decode.claim(key())
        await prefill.publish_all(key(), names)
        store.stopping.set()
        reading.fetch.want(wanted(names), time.monotonic())
        assert (await within(reading.no_more)).landed == 2
        await within(store.serving)


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_is_dropped_when_nothing_is_left_and_everything_is_told_once(
    seed: int, worker: MakeWorker
) -> None:
    """Requests that share prefixes, through a store too small for all; each end may be given up at any moment."""
    rng = random.Random(seed)
    async with (
        kvstore(capacity=12) as store,
        worker(store.address) as first,
        worker(store.address) as second,
        worker(store.address) as decode,
    ):

        async def a_while() -> None:
            for _ in range(rng.choice((0, 1, 5, 30, 100))):
                await asyncio.sleep(0)

        async def one(number: int) -> None:
            names = [*hashes(rng.randrange(4)), *hashes(rng.randrange(1, 4), f"own{number}-")]
            prefill = rng.choice((first, second))
            blocks = [replace(each, block=BlockId(1000 * number + each.index)) for each in sealed(names)]
            for block in blocks:
                prefill.memory.blocks[block.block] = content_of(block.hash, SMALL.block_bytes)
            reading, writing = decode.claim(key(str(number))), prefill.publish(key(str(number)))
            into = [replace(each, block=BlockId(1000 * number + each.index)) for each in wanted(names)]
            await a_while()
            cut = rng.randrange(len(names) + 1)
            writing.publication.add(blocks[:cut])
            reading.fetch.want(into, time.monotonic())
            await a_while()
            if rng.random() < 0.3:
                writing.publication.abort()
            if rng.random() < 0.3:
                reading.fetch.release()
            writing.publication.add(blocks[cut:])
            writing.publication.finish()
            reading.fetch.expect()
            await a_while()
            fetched = await within(reading.no_more, seconds=20)
            await asyncio.wait([writing.publication.task])
            assert sorted(writing.done) == [each.block for each in blocks]
            landed = [reading.landed.get_nowait() for _ in range(fetched.landed)]
            assert reading.landed.empty() and len(set(landed)) == len(landed)
            for index in landed:
                assert decode.memory.blocks[into[index].block] == content_of(names[index], SMALL.block_bytes)
            assert fetched.error is not None or len(landed) == len(names)

        async with asyncio.TaskGroup() as tasks:
            for number in range(24):
                tasks.create_task(one(number))
        await store.let_go()
        assert (await store.load()).blocks_used == 0
