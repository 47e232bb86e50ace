"""What stores say of their blocks on a bus, and what a scheduler knows of them; kvstores and nats-server are real."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from services.core.ids import BlockHash
from services.kvstore.__main__ import main as kvstore
from services.kvstore.settings import Settings
from services.runtime.bus import Bus
from services.scheduler.block_watch import BlockWatch
from services.scheduler.cluster_view import ClusterView
from services.scheduler.prefix_index import PrefixIndex
from tests.support.kv_world import SMALL, key, worker
from tests.support.nats import LossyBus, Nats, nats_server
from tests.support.ports import free_port
from tests.support.processes import process_of

PAGE = 4096
"""What a block of format SMALL takes of an arena."""
NEVER = 1000.0
"""Patience with a silent store, where a test is about what the bus says."""


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[Nats]:
    async with nats_server(tmp_path) as server:
        yield server


@asynccontextmanager
async def store(nats_url: str, name: str, blocks: int = 64, address: str = "") -> AsyncIterator[str]:
    """A kvstore's address."""
    address = address or f"127.0.0.1:{free_port()}"
    settings = Settings(
        listen=address, name=name, nats_url=nats_url, capacity_bytes=blocks * PAGE, metrics_port=None, drain_seconds=0
    )
    async with process_of("kvstore", settings) as (process, _):
        serving = asyncio.create_task(kvstore(process), name=name)
        try:
            yield address
        finally:
            process.stopping.set()
            await serving


@dataclass
class Scheduler:
    """What a scheduler knows of the stores."""

    view: ClusterView
    bus: LossyBus

    @property
    def index(self) -> PrefixIndex:
        return self.view.prefixes

    def known(self, hashes: Sequence[BlockHash]) -> dict[str, int]:
        return self.index.longest(hashes, "weights", str(SMALL))

    async def knows(self, hashes: Sequence[BlockHash], counts: dict[str, int]) -> None:
        """Returns once it knows exactly this."""
        try:
            await until(lambda: self.known(hashes) == counts)
        except TimeoutError:
            raise AssertionError(f"known is {self.known(hashes)}, not {counts}") from None


@asynccontextmanager
async def scheduler(nats_url: str, *stores: str, patience: float = NEVER) -> AsyncIterator[Scheduler]:
    """It hears the bus when this is entered."""
    bus = LossyBus(nats_url, "scheduler")
    view = ClusterView(kvstores={address: address for address in stores})
    watch = BlockWatch(bus, view, "", patience)
    async with bus:
        await until(lambda: bus.connected_since is not None or not nats_url)
        keeping = asyncio.create_task(watch.keep(), name="block-watch")
        try:
            yield Scheduler(view, bus)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
    view.prefixes.check_invariants()


async def put(address: str, hashes: Sequence[BlockHash], name: str = "r") -> None:
    async with worker(address) as writer, worker(address) as reader:
        reading = reader.claim(key(name))
        published = await writer.publish_all(key(name), hashes)
        assert published.error is None
        reading.fetch.release()


def blocks(count: int, prefix: str = "block") -> list[BlockHash]:
    return [BlockHash(f"{prefix}-{number}".encode().ljust(32, b".")) for number in range(count)]


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def test_what_is_put_into_two_stores_is_known_to_be_there(nats: Nats) -> None:
    async with store(nats.url, "k") as one, store(nats.url, "l") as two, scheduler(nats.url, one, two) as seen:
        await put(one, blocks(3))
        await put(two, blocks(5))
        await seen.knows(blocks(6), {one: 3, two: 5})
        assert seen.known(blocks(6, "other")) == {}


async def test_blocks_that_gave_way_are_known_to_be_gone(nats: Nats) -> None:
    async with store(nats.url, "k", blocks=4) as address, scheduler(nats.url, address) as seen:
        await put(address, blocks(4, "first"))
        await seen.knows(blocks(4, "first"), {address: 4})
        await put(address, blocks(4, "second"), "s")
        await seen.knows(blocks(4, "second"), {address: 4})
        assert seen.known(blocks(4, "first")) == {}


async def test_whoever_comes_late_asks_for_the_inventory(nats: Nats) -> None:
    async with store(nats.url, "k") as address:
        async with scheduler(nats.url, address) as early:
            await put(address, blocks(3))
            await early.knows(blocks(3), {address: 3})
        async with scheduler(nats.url, address) as late:
            await late.knows(blocks(3), {address: 3})


async def test_lost_messages_are_noticed_and_repaired(nats: Nats) -> None:
    async with store(nats.url, "k") as address, scheduler(nats.url, address) as seen:
        await put(address, blocks(2))
        await seen.knows(blocks(9), {address: 2})
        seen.bus.is_losing = True
        await put(address, blocks(4), "s")
        await until(lambda: seen.bus.lost > 1)
        assert seen.known(blocks(9)) == {address: 2}
        seen.bus.is_losing = False
        await seen.knows(blocks(9), {address: 4})
        await put(address, blocks(6), "t")
        await seen.knows(blocks(9), {address: 6})
        assert seen.index.gaps() == []


async def test_while_the_bus_is_away_the_last_view_serves_and_a_store_is_asked_itself(nats: Nats) -> None:
    async with store(nats.url, "k") as address, scheduler(nats.url, address, patience=0.5) as seen:
        await put(address, blocks(2))
        await seen.knows(blocks(9), {address: 2})
        await nats.stop()
        await until(lambda: seen.bus.connected_since is None)
        assert seen.known(blocks(9)) == {address: 2}
        await put(address, blocks(4), "s")
        await seen.knows(blocks(9), {address: 4})
    assert seen.known(blocks(9)) == {address: 4}


async def test_without_a_bus_configured_stores_are_asked() -> None:
    async with store("", "k") as address, scheduler("", address, patience=0.2) as seen:
        await put(address, blocks(3))
        await seen.knows(blocks(3), {address: 3})


async def test_after_the_bus_came_back_empty_what_was_missed_is_known(nats: Nats) -> None:
    async with store(nats.url, "k") as address, scheduler(nats.url, address) as seen:
        await put(address, blocks(2))
        await seen.knows(blocks(9), {address: 2})
        await nats.stop()
        await until(lambda: seen.bus.connected_since is None)
        await put(address, blocks(4), "s")
        await nats.start()
        await seen.knows(blocks(9), {address: 4})


async def test_a_store_that_restarts_is_known_to_be_empty(nats: Nats) -> None:
    async with store(nats.url, "k") as address, scheduler(nats.url, address) as seen:
        await put(address, blocks(3))
        await seen.knows(blocks(3), {address: 3})
        first_life, _ = seen.index.known(address)
    async with scheduler(nats.url, address) as seen, store(nats.url, "k", address=address):
        await until(lambda: seen.index.known(address)[0] not in ("", first_life))
        assert seen.known(blocks(3)) == {}
        await put(address, blocks(2))
        await seen.knows(blocks(3), {address: 2})


async def test_a_store_that_left_is_forgotten(nats: Nats) -> None:
    async with scheduler(nats.url, patience=0.5) as seen:
        async with store(nats.url, "k") as address:
            await put(address, blocks(3))
            await seen.knows(blocks(3), {address: 3})
        await until(lambda: not seen.index.addresses)


async def test_what_is_not_readable_on_the_bus_is_passed_over(nats: Nats) -> None:
    async with store(nats.url, "k") as address, scheduler(nats.url, address) as seen, Bus(nats.url, "noise") as noise:
        await until(lambda: noise.connected_since is not None)
        for payload in (b"", b"\xff\xff\xff", bytes(100)):
            await noise.publish("diptych.blocks.k", payload)
        await noise.flush()
        await put(address, blocks(3))
        await seen.knows(blocks(3), {address: 3})
