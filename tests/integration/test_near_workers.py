"""Workers that copy into and out of a store's arena: doubts, lost writers, a store that dies."""

import asyncio
import os
import random
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from services.core.errors import KVCorrupt, Overloaded, WorkerLost
from services.core.ids import BlockId
from services.core.model_config import WHOLE
from services.runtime.arena_file import HEADER_BYTES
from tests.support.kv_world import (
    PATIENCE,
    SMALL,
    TWO_PARTS,
    Memory,
    Store,
    content_of,
    free_port,
    hashes,
    key,
    kvstore,
    sealed,
    wanted,
    within,
    worker,
)

GONE_SECONDS = 2.0


class HeldMemory(Memory):
    """Whose copies last until the test says so."""

    def __init__(self) -> None:
        super().__init__(SMALL.block_bytes)
        self.is_copying, self.may_return = threading.Event(), threading.Event()

    def copy_out(self, block: BlockId, into: memoryview, part: slice = WHOLE) -> None:
        self.is_copying.set()
        assert self.may_return.wait(10)
        super().copy_out(block, into, part)


async def holdings(store: Store, kind: str) -> list[int]:
    return [holding.count for holding in await store.holdings() if holding.kind == kind]


async def test_near_workers_move_blocks_without_a_call_to_the_store() -> None:
    names = hashes(3)
    async with (
        kvstore(kv_format=TWO_PARTS) as store,
        worker(store.address, TWO_PARTS) as prefill,
        worker(store.address, TWO_PARTS) as decode,
    ):
        reading = decode.claim(key())
        reading.fetch.want(wanted(names), time.monotonic())
        assert (await prefill.publish_all(key(), names)).bytes == 3 * TWO_PARTS.block_bytes
        assert (await within(reading.no_more)).bytes == 3 * TWO_PARTS.block_bytes
        assert prefill.client.near_stores() == decode.client.near_stores() == [store.address]
        assert "kvstore.put" in (spans := {span.name for span in store.spans.get_finished_spans()})
        assert "kvstore.get" not in spans


@pytest.mark.parametrize(("writer_is_near", "reader_is_near"), [(True, False), (False, True)])
async def test_a_near_and_a_far_worker_exchange_blocks(writer_is_near: bool, reader_is_near: bool) -> None:
    names = hashes(3)
    async with (
        kvstore(kv_format=TWO_PARTS) as store,
        worker(store.address, TWO_PARTS, attach=writer_is_near) as prefill,
        worker(store.address, TWO_PARTS, attach=reader_is_near) as decode,
    ):
        reading = decode.claim(key())
        reading.fetch.want(wanted(names), time.monotonic())
        await prefill.publish_all(key(), names)
        assert (await within(reading.no_more)).landed == 3
        assert [decode.memory.blocks[BlockId(100 + n)] for n in range(3)] == [
            prefill.memory.blocks[BlockId(n)] for n in range(3)
        ]
        assert (store.address in prefill.client.near_stores()) == writer_is_near


async def test_a_page_that_went_bad_is_found_by_its_reader_and_given_to_nobody_else(tmp_path: Path) -> None:
    names = hashes(2)
    async with (
        kvstore(capacity=4, directory=tmp_path) as store,
        worker(store.address) as prefill,
        worker(store.address) as decode,
    ):
        await prefill.publish_all(key("a"), names)
        await store.let_go()
        (path,) = tmp_path.iterdir()
        content = path.read_bytes()
        place = content.index(prefill.memory.blocks[BlockId(1)])
        with path.open("r+b") as file:
            os.pwrite(file.fileno(), b"scribble", place + 16)
        reading = decode.claim(key("a"))
        reading.fetch.want(wanted(names), time.monotonic())
        fetched = await within(reading.no_more)
        assert (fetched.landed, type(fetched.error)) == (1, KVCorrupt)
        assert reading.landed.get_nowait() == 0
        await store.let_go()
        assert (await store.load()).blocks_cached == 1
        published = await prefill.publish_all(key("b"), names)
        assert (published.skipped, published.blocks) == (1, 2)


async def test_blocks_that_the_reader_holds_already_are_not_put() -> None:
    names = hashes(4)
    async with kvstore() as store, worker(store.address) as prefill, worker(store.address) as decode:
        reading = decode.claim(key())
        reading.fetch.want(wanted(names)[2:], time.monotonic())
        while not [each for each in await store.holdings() if each.state == "claimed"]:
            pass
        published = await prefill.publish_all(key(), names)
        assert (published.blocks, published.skipped, prefill.memory.reads) == (4, 2, 2)
        assert (await within(reading.no_more)).landed == 2


async def test_a_lost_writers_page_is_lent_to_nobody_until_its_copy_has_returned() -> None:
    memory = HeldMemory()
    async with (
        kvstore(capacity=1) as store,
        worker(store.address, memory=memory) as lost,
        worker(store.address) as other,
    ):
        memory.fill(hashes(1))
        writing = lost.publish(key("a"))
        writing.publication.add(sealed(hashes(1)))
        await asyncio.to_thread(memory.is_copying.wait, 5)
        await lost.loses_its_session()
        while await holdings(store, "quarantine") != [1]:
            pass
        assert isinstance((await other.publish_all(key("b"), hashes(1, "b"))).error, Overloaded)
        assert writing.done == []
        memory.may_return.set()
        await asyncio.wait([writing.publication.task], timeout=5)
        assert writing.done == [0]
        while await holdings(store, "quarantine"):
            pass
        assert (await other.publish_all(key("c"), hashes(1, "c"))).error is None


async def test_a_writer_whose_reader_left_gives_its_page_back_after_its_copy() -> None:
    memory = HeldMemory()
    async with (
        kvstore(capacity=1) as store,
        worker(store.address, memory=memory) as prefill,
        worker(store.address) as decode,
    ):
        memory.fill(hashes(1))
        reading, writing = decode.claim(key("a")), prefill.publish(key("a"))
        writing.publication.add(sealed(hashes(1)))
        await asyncio.to_thread(memory.is_copying.wait, 5)
        while not [holding for holding in await store.holdings() if holding.state == "joined"]:
            pass
        reading.fetch.release()
        await asyncio.wait([reading.fetch.task])
        while await holdings(store, "handoff"):
            pass
        assert (await store.load()).blocks_used == 1
        memory.may_return.set()
        await asyncio.wait([writing.publication.task])
        await store.let_go()
        assert (await store.load()).blocks_used == 0


async def test_a_worker_that_has_lost_its_session_attaches_anew() -> None:
    async with kvstore() as store, worker(store.address) as prefill:
        await prefill.publish_all(key("a"), hashes(2))
        await prefill.loses_its_session()
        await prefill.meets_its_store()
        assert prefill.client.near_stores() == [store.address]
        published = await prefill.publish_all(key("b"), hashes(3))
        assert (published.skipped, published.blocks) == (2, 3)


class SlowMemory(Memory):
    """Whose copies take a while, half of it with the page half written or half read."""

    def copy_out(self, block: BlockId, into: memoryview, part: slice = WHOLE) -> None:
        content, half = self.blocks[block][part], len(into) // 2
        into[:half] = content[:half]
        time.sleep(0.0005)
        into[half:] = content[half:]

    def copy_in(self, block: BlockId, content: memoryview, part: slice = WHOLE) -> memoryview:
        half = len(content) // 2
        first = bytes(content[:half])
        time.sleep(0.0005)
        return super().copy_in(block, memoryview(first + bytes(content[half:])), part)


@pytest.mark.parametrize("seed", range(2))
async def test_sessions_that_are_lost_at_any_moment_never_put_a_wrong_byte_into_a_cache(seed: int) -> None:
    """Three workers that share prefixes, through a store too small for all, and lose their sessions now and then."""
    rng = random.Random(seed)
    async with kvstore(capacity=8) as store, AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(worker(store.address, memory=SlowMemory(SMALL.block_bytes)))
            for _ in range(3)
        ]
        landed = 0

        async def one(number: int) -> int:
            names = [*hashes(rng.randrange(4)), *hashes(rng.randrange(1, 4), f"own{number}-")]
            prefill, decode = rng.sample(workers, 2)
            blocks = [replace(each, block=BlockId(1000 * number + each.index)) for each in sealed(names)]
            for block in blocks:
                prefill.memory.blocks[block.block] = content_of(block.hash, SMALL.block_bytes)
            into = [replace(each, block=BlockId(1000 * number + 500 + each.index)) for each in wanted(names)]
            reading, writing = decode.claim(key(str(number))), prefill.publish(key(str(number)))
            reading.fetch.want(into, time.monotonic())
            writing.publication.add(blocks)
            writing.publication.finish()
            reading.fetch.expect()
            fetched = await within(reading.no_more, seconds=20)
            await asyncio.wait([writing.publication.task])
            assert sorted(writing.done) == [each.block for each in blocks]
            for index in [reading.landed.get_nowait() for _ in range(fetched.landed)]:
                assert decode.memory.blocks[into[index].block] == content_of(names[index], SMALL.block_bytes)
            for block in blocks:
                # The blocks of a publication that is over are another request's now.
                prefill.memory.blocks[block.block] = bytes(SMALL.block_bytes)
            return fetched.landed

        async def lose() -> None:
            await asyncio.sleep(rng.uniform(0.0, 0.02))
            await rng.choice(workers).loses_its_session()

        for start in range(0, 60, 6):
            for each in workers:
                await each.meets_its_store()
            losing = asyncio.create_task(lose())
            landed += sum(await asyncio.gather(*(one(start + n) for n in range(6))))
            await losing
        assert landed > 0
        await store.let_go(5)
        assert (await store.load()).blocks_used == 0


@asynccontextmanager
async def kvstore_process(port: int, directory: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    settings = {
        "LISTEN": f"127.0.0.1:{port}",
        "ARENA_DIRECTORY": str(directory),
        "CAPACITY_BYTES": str(1 << 20),
        "EXIT_WITH_PARENT": "true",
    }
    environment = {f"DIPTYCH_KVSTORE__{name}": value for name, value in settings.items()}
    store = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.kvstore", stdin=asyncio.subprocess.PIPE, env={**os.environ, **environment}
    )
    try:
        yield store
    finally:
        if store.returncode is None:
            store.kill()
        await store.wait()


async def until_empty(directory: Path) -> None:
    while list(directory.iterdir()):
        await asyncio.sleep(0.01)


async def test_a_store_that_is_killed_leaves_no_memory_behind_and_holds_nobody_up(tmp_path: Path) -> None:
    port = free_port()
    async with (
        kvstore_process(port, tmp_path) as store,
        worker(f"127.0.0.1:{port}") as prefill,
        worker(f"127.0.0.1:{port}") as decode,
    ):
        await prefill.meets_its_store(30)
        await decode.meets_its_store(30)
        (path,) = tmp_path.iterdir()
        assert path.stat().st_size == HEADER_BYTES + (1 << 20)
        reading, writing = decode.claim(key()), prefill.publish(key())
        prefill.memory.fill(hashes(2))
        reading.fetch.want(wanted(hashes(2)), time.monotonic())
        writing.publication.add(sealed(hashes(1)))
        await reading.landed.get()
        store.send_signal(signal.SIGKILL)
        died = time.monotonic()
        fetched = await within(reading.no_more, GONE_SECONDS)
        assert (fetched.landed, type(fetched.error)) == (1, WorkerLost)
        async with asyncio.timeout(GONE_SECONDS - (time.monotonic() - died)):
            await until_empty(tmp_path)
        again = decode.claim(key("later"))
        again.fetch.want(wanted(hashes(1)), time.monotonic())
        assert isinstance((await within(again.no_more, PATIENCE)).error, WorkerLost)


async def test_a_store_that_is_stopped_in_good_order_takes_its_memory_along(tmp_path: Path) -> None:
    port = free_port()
    async with kvstore_process(port, tmp_path) as store, worker(f"127.0.0.1:{port}") as prefill:
        await prefill.meets_its_store(30)
        store.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(store.wait(), 10) == 0
        assert not list(tmp_path.iterdir())
