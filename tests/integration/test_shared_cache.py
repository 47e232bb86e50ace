"""Blocks kept in a real kvstore's cache and borrowed from it, by workers that have its arena mapped and by others: what
is kept is lent, and whatever goes wrong on the way holds no block and no page."""

import asyncio
import threading
from functools import partial
from pathlib import Path

import pytest

from services.core.errors import KVCorrupt, KVMissing, Overloaded, WorkerLost
from services.core.ids import BlockId
from services.core.model_config import WHOLE
from tests.support import kv_world
from tests.support.kv_world import (
    PATIENCE,
    SMALL,
    TWO_PARTS,
    MakeWorker,
    Memory,
    Store,
    content_of,
    free_port,
    hashes,
    key,
    kvstore,
    sealed,
    within,
)


@pytest.fixture(params=["near", "far"])
def worker(request: pytest.FixtureRequest) -> MakeWorker:
    """Workers that have the store's arena mapped, and such as have not."""
    return partial(kv_world.worker, attach=request.param == "near")


class HeldMemory(Memory):
    """Whose copies last until the test says so."""

    def __init__(self) -> None:
        super().__init__(SMALL.block_bytes)
        self.is_copying, self.may_return = threading.Event(), threading.Event()

    def _hold(self) -> None:
        self.is_copying.set()
        assert self.may_return.wait(10)

    def copy_out(self, block: BlockId, into: memoryview, part: slice = WHOLE) -> None:
        self._hold()
        super().copy_out(block, into, part)

    def copy_in(self, block: BlockId, content: memoryview, part: slice = WHOLE) -> memoryview:
        self._hold()
        return super().copy_in(block, content, part)


async def cached(store: Store) -> int:
    return (await store.load()).blocks_cached


async def test_what_one_worker_keeps_another_borrows(worker: MakeWorker) -> None:
    names = hashes(4)
    async with (
        kvstore(kv_format=TWO_PARTS) as store,
        worker(store.address, TWO_PARTS) as decode,
        worker(store.address, TWO_PARTS) as prefill,
    ):
        await decode.meets_its_store()
        await prefill.meets_its_store()
        kept = await decode.keep_all(key("one"), names[:3])
        assert (kept.blocks, kept.skipped, kept.bytes, kept.error) == (3, 0, 3 * TWO_PARTS.block_bytes, None)
        await store.let_go()
        reading = prefill.borrow(key("two"), names)
        fetched = await within(reading.no_more)
        # What the store does not have nobody waits for, and it is nothing that went wrong.
        assert (fetched.landed, fetched.bytes, fetched.error) == (3, 3 * TWO_PARTS.block_bytes, None)
        assert [reading.landed.get_nowait() for _ in range(3)] == [0, 1, 2]
        assert all(prefill.memory.blocks[BlockId(100 + n)] == decode.memory.blocks[BlockId(n)] for n in range(3))
        assert "missing" not in str(prefill.counted("diptych_kv_blocks_total"))
        assert [(span.attributes or {})["diptych.blocks"] for span in prefill.finished_spans("kv.borrow")] == [3]
        await store.let_go()
        assert await cached(store) == 3


async def test_only_the_beginning_is_lent(worker: MakeWorker) -> None:
    names = hashes(4)
    async with kvstore() as store, worker(store.address) as decode, worker(store.address) as prefill:
        await decode.meets_its_store()
        await prefill.meets_its_store()
        await decode.keep_all(key("one"), [names[0], names[2], names[3]])
        await store.let_go()
        assert (await within(prefill.borrow(key("two"), names).no_more)).landed == 1
        assert (await within(prefill.borrow(key("three"), names[1:]).no_more)).landed == 0
        await store.let_go()


async def test_a_lent_block_is_not_evicted_until_it_is_back(worker: MakeWorker) -> None:
    names, memory = hashes(2), HeldMemory()
    async with (
        kvstore(capacity=2) as store,
        worker(store.address) as decode,
        kv_world.worker(store.address, memory=memory) as prefill,
    ):
        await decode.meets_its_store()
        await prefill.meets_its_store()
        await decode.keep_all(key("one"), names)
        await store.let_go()
        reading = prefill.borrow(key("two"), names)
        await asyncio.to_thread(memory.is_copying.wait, 5)
        assert [each.count for each in await store.holdings() if each.kind == "loan"] == [2]
        assert [(each.kind, each.count) for each in prefill.client.holdings()] == [("borrowing", 2)]
        refused = await decode.keep_all(key("three"), hashes(1, "q"))
        assert (refused.blocks, type(refused.error)) == (0, Overloaded)
        # Given up while it is copied: it is back once the copy has returned.
        reading.fetch.release()
        await asyncio.sleep(0)
        assert not reading.no_more.done()
        memory.may_return.set()
        await within(reading.no_more)
        await store.let_go()
        assert (await decode.keep_all(key("four"), hashes(1, "q"))).blocks == 1


async def test_a_full_store_takes_for_its_cache_what_evicts_only_cached_blocks(worker: MakeWorker) -> None:
    async with kvstore(capacity=2) as store, worker(store.address) as decode:
        await decode.meets_its_store()
        assert (await decode.keep_all(key("one"), hashes(2, "a"))).blocks == 2
        assert (await decode.keep_all(key("two"), hashes(2, "b"))).blocks == 2
        reading = decode.borrow(key("three"), hashes(2, "a"))
        assert (await within(reading.no_more)).landed == 0
        # In use by a hand-over that nobody has read yet.
        writing = decode.publish(key("four"))
        writing.publication.add(sealed(hashes(2, "b")))
        while not [each for each in await store.holdings() if each.kind == "pins" and each.count == 2]:
            pass
        kept = await decode.keep_all(key("five"), hashes(2, "c"))
        assert (kept.blocks, type(kept.error)) == (0, Overloaded)
        writing.publication.abort()
        await asyncio.wait([writing.publication.task], timeout=5)
        await store.let_go()


async def test_two_workers_that_keep_the_same_blocks_put_them_once(worker: MakeWorker) -> None:
    names, memory = hashes(2), HeldMemory()
    async with (
        kvstore() as store,
        worker(store.address, memory=memory) as first,
        worker(store.address) as second,
    ):
        await first.meets_its_store()
        await second.meets_its_store()
        memory.fill(names)
        writing = first.keep(key("one"))
        writing.publication.add(sealed(names))
        writing.publication.finish()
        await asyncio.to_thread(memory.is_copying.wait, 5)
        other = await second.keep_all(key("two"), names)
        assert (other.skipped, other.bytes, second.memory.reads) == (2, 0, 0)
        # Under the same key, too, everything is answered.
        again = first.keep(key("one"))
        again.publication.add(sealed(names))
        again.publication.finish()
        assert (await within(again.published)).skipped == 2
        memory.may_return.set()
        assert (await within(writing.published)).blocks == 2
        await store.let_go()
        assert await cached(store) == 2


async def test_what_is_given_up_before_the_store_has_answered_leaves_no_page_behind(worker: MakeWorker) -> None:
    names = hashes(3)
    async with kvstore(capacity=3) as store, worker(store.address) as decode:
        await decode.meets_its_store()
        decode.memory.fill(names)
        writing = decode.keep(key("one"))
        writing.publication.add(sealed(names))
        while writing.publication.num_unsealed and decode.client.holdings() and not decode.memory.reads:
            await asyncio.sleep(0)
            writing.publication.abort()
        await asyncio.wait([writing.publication.task], timeout=5)
        assert sorted(writing.done) == [0, 1, 2] and not writing.published.done()
        await store.let_go()
        assert (await store.load()).blocks_used == 0
        assert (await decode.keep_all(key("two"), names)).error is None


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_copy_that_is_given_up_returns_before_its_block_is_done(worker: MakeWorker, is_lost: bool) -> None:
    names, memory = hashes(2), HeldMemory()
    async with kvstore(capacity=2) as store, worker(store.address, memory=memory) as decode:
        await decode.meets_its_store()
        memory.fill(names)
        writing = decode.keep(key("one"))
        writing.publication.add(sealed(names))
        await asyncio.to_thread(memory.is_copying.wait, 5)
        if is_lost:
            await decode.loses_its_session()
        else:
            writing.publication.abort()
        # Far, only one of the blocks is being copied.
        assert BlockId(0) not in writing.done
        memory.may_return.set()
        await asyncio.wait([writing.publication.task], timeout=5)
        assert sorted(writing.done) == [0, 1]
        await store.let_go(5)
        await decode.meets_its_store()
        assert (await decode.keep_all(key("two"), hashes(2, "q"))).blocks == 2


async def test_a_hand_over_under_the_same_key_and_blocks_for_the_cache_do_not_disturb_each_other(
    worker: MakeWorker,
) -> None:
    names, answer = hashes(3), hashes(2, "answer")
    async with kvstore() as store, worker(store.address) as prefill, worker(store.address) as decode:
        await decode.meets_its_store()
        reading = decode.claim(key())
        decode.memory.fill(answer)
        keeping = decode.keep(key())
        keeping.publication.add(sealed(answer[:1]))
        await prefill.publish_all(key(), names)
        reading.fetch.want(kv_world.wanted(names), 0.0)
        assert (await within(reading.no_more)).landed == 3
        keeping.publication.add(sealed(answer)[1:])
        keeping.publication.finish()
        kept = await within(keeping.published)
        assert (kept.blocks, kept.error) == (2, None)
        await store.let_go()
        assert await cached(store) == 5


async def test_a_store_that_is_killed_lets_go_of_everything_at_once(worker: MakeWorker) -> None:
    names = hashes(2)
    memories = [HeldMemory(), HeldMemory()]
    async with (
        kvstore() as store,
        worker(store.address) as filler,
        worker(store.address, memory=memories[0]) as decode,
        worker(store.address, memory=memories[1]) as prefill,
    ):
        for each in (filler, decode, prefill):
            await each.meets_its_store()
        await filler.keep_all(key("one"), names)
        await store.let_go()
        memories[0].fill(hashes(2, "q"))
        keeping, reading = decode.keep(key("two")), prefill.borrow(key("three"), names)
        keeping.publication.add(sealed(hashes(2, "q")))
        for memory in memories:
            await asyncio.to_thread(memory.is_copying.wait, 5)
        await store.kill()
        for each in (decode, prefill):
            await each.misses_its_store()
        for memory in memories:
            memory.may_return.set()
        assert isinstance((await within(reading.no_more)).error, WorkerLost)
        await asyncio.wait([keeping.publication.task], timeout=5)
        assert sorted(keeping.done) == [0, 1]
        keeping.publication.finish()
        assert isinstance((await within(keeping.published)).error, WorkerLost)
        # There is no session any more: nothing is waited for.
        assert isinstance((await within(prefill.borrow(key("four"), names).no_more, PATIENCE)).error, WorkerLost)


async def test_a_store_that_is_not_there_costs_nothing() -> None:
    async with kv_world.worker(f"127.0.0.1:{free_port()}") as decode:
        decode.memory.fill(hashes(2))
        assert isinstance((await within(decode.borrow(key("a"), hashes(2)).no_more, PATIENCE / 2)).error, WorkerLost)
        writing = decode.keep(key("b"))
        writing.publication.add(sealed(hashes(2)))
        await asyncio.wait([writing.publication.task], timeout=PATIENCE / 2)
        assert writing.done == [0, 1]


async def test_a_store_that_does_not_answer_is_not_waited_for(worker: MakeWorker) -> None:
    names = hashes(2)
    async with kvstore() as store, worker(store.address) as decode:
        await decode.meets_its_store()
        session = await decode.client.links.connected(store.address)
        session.send = lambda message: None  # type: ignore[method-assign]
        decode.memory.fill(names)
        writing, reading = decode.keep(key("a")), decode.borrow(key("b"), names)
        writing.publication.add(sealed(names))
        assert isinstance((await within(reading.no_more, 2 * PATIENCE)).error, KVMissing)
        writing.publication.finish()
        assert isinstance((await within(writing.published, 2 * PATIENCE)).error, WorkerLost)
        assert writing.done == [0, 1]
        session.end()
        await asyncio.wait([writing.publication.task], timeout=5)


async def test_a_page_that_went_bad_is_found_by_who_borrows_it_and_lent_to_nobody_else(
    worker: MakeWorker, tmp_path: Path
) -> None:
    names = hashes(2)
    async with kvstore(directory=tmp_path) as store, worker(store.address) as decode:
        await decode.meets_its_store()
        await decode.keep_all(key("a"), names)
        (path,) = tmp_path.iterdir()
        place = path.read_bytes().index(content_of(names[1], SMALL.block_bytes))
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"scribble")
        fetched = await within(decode.borrow(key("b"), names).no_more)
        assert (fetched.landed, type(fetched.error)) == (1, KVCorrupt)
        await store.let_go()
        if decode.client.near_stores():
            assert await cached(store) == 1
