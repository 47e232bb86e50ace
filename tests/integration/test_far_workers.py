"""Workers that stream: credits hold the store back, and nobody keeps more than a few parts."""

import asyncio
import threading
import time

import grpc.aio
import pytest

from services.core.errors import InvalidRequest
from services.core.ids import BlockId
from services.core.model_config import WHOLE
from services.pb import kvstore_pb2, kvstore_pb2_grpc
from services.runtime import dial
from services.runtime.codec import handoff_to_pb
from services.runtime.edge import remote_errors
from services.runtime.part_stream import CREDIT
from services.runtime.part_wire import unpacked
from tests.support.kv_world import TWO_PARTS, Memory, hashes, key, kvstore, wanted, within, worker

BLOCKS = 12


class HeldMemory(Memory):
    """Which takes no block until the test says so."""

    def __init__(self) -> None:
        super().__init__(TWO_PARTS.block_bytes)
        self.is_filling, self.may_fill = threading.Event(), threading.Event()

    def copy_in(self, block: BlockId, content: memoryview, part: slice = WHOLE) -> memoryview:
        self.is_filling.set()
        assert self.may_fill.wait(10)
        return super().copy_in(block, content, part)


async def test_a_store_sends_no_more_parts_than_it_has_credit_for() -> None:
    names = hashes(BLOCKS)
    async with (
        kvstore(kv_format=TWO_PARTS) as store,
        worker(store.address, TWO_PARTS) as prefill,
        worker(store.address, TWO_PARTS) as decode,
    ):
        reading = decode.claim(key())
        await prefill.publish_all(key(), names)
        async with dial.channel(store.address) as channel:
            call = kvstore_pb2_grpc.KVStoreStub(channel).Pull()
            opening = kvstore_pb2.PullOpen(
                handoff=handoff_to_pb(key()), incarnation=decode.client.links.incarnation, hashes=names, credit=2
            )
            await call.write(kvstore_pb2.PullDown(open=opening))
            for _ in range(2):
                assert (await call.read()).bytes
            third = asyncio.ensure_future(call.read())
            await asyncio.wait([third], timeout=0.2)
            assert not third.done()
            await call.write(kvstore_pb2.PullDown(credit=1))
            assert (await within(third)).bytes
            # A reader that wants no more says so by ending its side.
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
        reading.fetch.release()
        await store.let_go()


async def test_a_reader_that_is_slow_holds_the_store_back_and_gets_everything_in_the_end() -> None:
    names, memory = hashes(BLOCKS), HeldMemory()
    async with (
        kvstore(kv_format=TWO_PARTS) as store,
        worker(store.address, TWO_PARTS) as prefill,
        worker(store.address, TWO_PARTS, memory=memory, attach=False) as decode,
    ):
        reading = decode.claim(key())
        await prefill.publish_all(key(), names)
        reading.fetch.want(wanted(names), time.monotonic())
        await asyncio.to_thread(memory.is_filling.wait, 5)
        # The store waits for credit: most of the blocks are still to be sent.
        assert not [each for each in store.spans.get_finished_spans() if each.name == "kvstore.get"]
        memory.may_fill.set()
        fetched = await within(reading.no_more)
        assert (fetched.landed, fetched.error) == (BLOCKS, None)
        await store.let_go()
        spans = [each for each in store.spans.get_finished_spans() if each.name == "kvstore.get"]
        assert sum(each.attributes["diptych.bytes"] for each in spans) == BLOCKS * TWO_PARTS.block_bytes


async def test_a_pull_that_begins_with_anything_else_is_refused() -> None:
    async with kvstore() as store, dial.channel(store.address) as channel:
        call = kvstore_pb2_grpc.KVStoreStub(channel).Pull()
        await call.write(kvstore_pb2.PullDown(credit=CREDIT))
        with pytest.raises(InvalidRequest), remote_errors():
            await call.read()


async def test_what_the_store_writes_is_a_part_on_the_wire() -> None:
    (name,) = hashes(1)
    async with kvstore() as store, worker(store.address) as prefill, worker(store.address) as decode:
        reading = decode.claim(key())
        await prefill.publish_all(key(), [name])
        call = decode.client.links.pull(store.address)()
        opening = kvstore_pb2.PullOpen(
            handoff=handoff_to_pb(key()), incarnation=decode.client.links.incarnation, hashes=[name], credit=1
        )
        await call.write(kvstore_pb2.PullDown(open=opening))
        raw = await call.read()
        pieces, content = unpacked(raw)
        assert [piece.hash for piece in pieces] == [name]
        assert bytes(content) == prefill.memory.blocks[BlockId(0)]
        assert kvstore_pb2.Part.FromString(raw).bytes == content
        call.cancel()
        reading.fetch.release()
        await store.let_go()
