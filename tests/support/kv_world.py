"""A real kvstore, wired by its own `main`, and workers' clients of it, in the test's event loop."""

import asyncio
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services.core.batch_events import FetchBlock, SealedBlock
from services.core.errors import KVCorrupt
from services.core.ids import BlockHash, BlockId, RequestId, RequestKey
from services.core.model_config import WHOLE, KVFormat
from services.kvstore.__main__ import main
from services.kvstore.settings import Settings
from services.pb import operations_pb2, operations_pb2_grpc, session_pb2
from services.runtime import dial
from services.runtime.faults import Faults
from services.runtime.kv_client import KVClient, Reach
from services.runtime.kv_fetch import Fetch, Fetched, ReaderCalls
from services.runtime.kv_publication import Publication, Published, WriterCalls
from services.runtime.kv_way import Lane
from services.runtime.metrics import Metrics
from services.runtime.session import PROTOCOL, Terms
from services.runtime.settings import ServiceSettings
from tests.support.processes import process_of

T = TypeVar("T")

SMALL = KVFormat("float32", block_size=16, layers=1, kv_heads=1, head_dim=2)
PATIENCE = 0.5
SHARED_MEMORY = Path("/dev/shm")
TWO_PARTS = KVFormat("float32", block_size=16, layers=60, kv_heads=3, head_dim=64)
"""Blocks of 1.4 MiB, which travel in two parts."""


def key(request_id: str = "r", attempt: int = 0) -> RequestKey:
    return RequestKey(RequestId(request_id), attempt)


def hashes(count: int, prefix: str = "p") -> list[BlockHash]:
    return [BlockHash(f"{prefix}{index}".encode()) for index in range(count)]


def content_of(block_hash: BlockHash, size: int) -> bytes:
    """What every worker computes for a block."""
    return random.Random(block_hash).randbytes(size)


class Memory:
    """Blocks of one worker's KV cache. Implements `kv_way.BlockBytes`."""

    def __init__(self, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self.blocks: dict[BlockId, bytes] = {}
        self.reads = 0

    def fill(self, hashes: Sequence[BlockHash]) -> None:
        """Block n holds bytes that follow from the n-th hash."""
        for number, block_hash in enumerate(hashes):
            self.blocks[BlockId(number)] = content_of(block_hash, self.block_bytes)

    def copy_out(self, block: BlockId, into: memoryview, part: slice = WHOLE) -> None:
        self.reads += 1
        into[:] = self.blocks[block][part]

    def copy_in(self, block: BlockId, content: memoryview, part: slice = WHOLE) -> memoryview:
        held = memoryview(bytearray(self.blocks.get(block, bytes(self.block_bytes))))
        if content.nbytes != held[part].nbytes:
            raise KVCorrupt("wrong length")
        held[part] = content
        self.blocks[block] = bytes(held)
        return held[part]


@dataclass
class Writing:
    """A publication and what it told."""

    publication: Publication
    done: list[BlockId]
    published: asyncio.Future[Published]


@dataclass
class Reading:
    """A fetch and what it told."""

    fetch: Fetch
    landed: asyncio.Queue[int]
    no_more: asyncio.Future[Fetched]


@dataclass
class Worker:
    client: KVClient
    memory: Memory
    spans: InMemorySpanExporter
    store: str
    metrics: Metrics

    async def loses_its_session(self) -> None:
        """And will dial again."""
        session = await self.client.links.connected(self.store)
        session.end()
        async with asyncio.timeout(5):
            while self.store in self.client.links.stores():
                await asyncio.sleep(0)

    async def misses_its_store(self, seconds: float = 5.0) -> None:
        """Returns once it knows that its session is lost."""
        async with asyncio.timeout(seconds):
            while self.store in self.client.links.stores():
                await asyncio.sleep(0.01)

    async def meets_its_store(self, seconds: float = 5.0) -> None:
        """Returns once there is a session that can be used."""
        self.client.links.ensure(self.store)
        async with asyncio.timeout(seconds):
            while self.store not in self.client.links.stores():
                await asyncio.sleep(0.01)

    def publish(self, request: RequestKey, traceparent: str = "") -> Writing:
        done: list[BlockId] = []
        published: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        calls = WriterCalls(done.append, published.set_result)
        return Writing(self.client.publish(Lane(request, self.store, traceparent), calls), done, published)

    async def publish_all(self, request: RequestKey, block_hashes: Sequence[BlockHash]) -> Published:
        """Fills the cache with the blocks of these hashes and puts them; every block is done once."""
        self.memory.fill(block_hashes)
        writing = self.publish(request)
        writing.publication.add(sealed(block_hashes))
        writing.publication.finish()
        published = await within(writing.published)
        assert sorted(writing.done) == list(range(len(block_hashes)))
        return published

    def claim(self, request: RequestKey, traceparent: str = "") -> Reading:
        landed: asyncio.Queue[int] = asyncio.Queue()
        no_more: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()
        calls = ReaderCalls(landed.put_nowait, no_more.set_result)
        return Reading(self.client.claim(Lane(request, self.store, traceparent), calls), landed, no_more)

    def keep(self, request: RequestKey) -> Writing:
        done: list[BlockId] = []
        published: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        calls = WriterCalls(done.append, published.set_result)
        return Writing(self.client.keep(Lane(request, self.store, ""), calls), done, published)

    async def keep_all(self, request: RequestKey, block_hashes: Sequence[BlockHash]) -> Published:
        """Fills the cache with the blocks of these hashes and offers them for the store's; every block is done once."""
        self.memory.fill(block_hashes)
        writing = self.keep(request)
        writing.publication.add(sealed(block_hashes))
        writing.publication.finish()
        published = await within(writing.published)
        assert sorted(writing.done) == list(range(len(block_hashes)))
        return published

    def borrow(self, request: RequestKey, block_hashes: Sequence[BlockHash]) -> Reading:
        landed: asyncio.Queue[int] = asyncio.Queue()
        no_more: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()
        calls = ReaderCalls(landed.put_nowait, no_more.set_result)
        lane = Lane(request, self.store, "")
        return Reading(self.client.borrow(lane, wanted(block_hashes), time.monotonic(), calls), landed, no_more)

    def counted(self, name: str) -> dict[str, float]:
        """Values of a counter that are not 0, by its labels as they are exported."""
        lines = self.metrics.exposition().decode().splitlines()
        values = dict(line.rsplit(" ", 1) for line in lines if line.startswith(f"{name}{{"))
        return {labels.removeprefix(name): float(value) for labels, value in values.items() if float(value)}

    def finished_spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans.get_finished_spans() if span.name == name]


@dataclass
class Store:
    """A running kvstore."""

    address: str
    spans: InMemorySpanExporter
    stopping: asyncio.Event
    serving: asyncio.Task[None]

    async def kill(self) -> None:
        self.serving.cancel()
        with suppress(asyncio.CancelledError):
            await self.serving

    async def holdings(self) -> list[operations_pb2.Holding]:
        """What it holds beside its sessions."""
        async with dial.channel(self.address) as channel:
            stub = operations_pb2_grpc.OperationsStub(channel)
            report = await stub.Audit(operations_pb2.AuditRequest(), wait_for_ready=True)
        return [holding for holding in report.holdings if holding.kind not in ("session", "span")]

    async def load(self) -> operations_pb2.Load:
        async with dial.channel(self.address) as channel:
            status = await operations_pb2_grpc.OperationsStub(channel).Status(
                operations_pb2.StatusRequest(), wait_for_ready=True
            )
        return status.load

    async def let_go(self, seconds: float = 1.0) -> None:
        """Returns once it holds nothing for anybody; TimeoutError if that takes too long."""
        async with asyncio.timeout(seconds):
            while await self.holdings():
                pass


@asynccontextmanager
async def kvstore(
    capacity: int = 64, port: int = 0, kv_format: KVFormat = SMALL, directory: Path = SHARED_MEMORY
) -> AsyncIterator[Store]:
    """A store on loopback, for so many blocks. Nothing may be held when it is left, unless it was killed."""
    address = f"127.0.0.1:{port or free_port()}"
    settings = Settings(
        listen=address,
        capacity_bytes=capacity * (-(-kv_format.block_bytes // 4096) * 4096),
        arena_directory=directory,
        drain_seconds=2,
        metrics_port=None,
        session_timeout=2,
    )
    async with process_of("kvstore", settings) as (process, spans):
        store = Store(address, spans, process.stopping, asyncio.create_task(main(process)))
        try:
            yield store
            if not store.serving.done():
                await store.let_go()
                process.stopping.set()
                await within(store.serving)
        finally:
            await store.kill()


@asynccontextmanager
async def worker(
    store: str,
    kv_format: KVFormat = SMALL,
    fingerprint: str = "weights",
    memory: Memory | None = None,
    attach: bool = True,
    **delays: float,
) -> AsyncIterator[Worker]:
    """One worker's side of the store at an address; `delays` are planted at seams, with `_` for the dot."""
    async with process_of("decode", ServiceSettings()) as (process, spans):
        hello = session_pb2.Hello(
            protocol=PROTOCOL,
            name=process.identity.name,
            incarnation=process.identity.incarnation,
            fingerprint=fingerprint,
            format=str(kv_format),
        )
        faults = Faults({seam.replace("_", "."): seconds for seam, seconds in delays.items()})
        memory = memory or Memory(kv_format.block_bytes)
        reach = Reach(patience=PATIENCE, attach=attach)
        terms = Terms(hello, 2.0, faults)
        async with KVClient(memory, terms, process.telemetry, process.metrics, reach) as client:
            yield Worker(client, memory, spans, store, process.metrics)
        assert not client.holdings(), "a transfer is left"


MakeWorker = Callable[..., AbstractAsyncContextManager[Worker]]
"""`worker`, or a variant of it."""


def sealed(block_hashes: Sequence[BlockHash], first: int = 0) -> list[SealedBlock]:
    """Block n of the cache has hash n and stands at index n of the prompt."""
    return [
        SealedBlock(first + n, block_hash, BlockId(first + n), (0,) * 16) for n, block_hash in enumerate(block_hashes)
    ]


def wanted(block_hashes: Sequence[BlockHash]) -> list[FetchBlock]:
    """Into blocks 100, 101, ..."""
    return [FetchBlock(n, block_hash, BlockId(100 + n)) for n, block_hash in enumerate(block_hashes)]


async def within(awaitable: "asyncio.Future[T]", seconds: float = 5.0) -> T:
    async with asyncio.timeout(seconds):
        return await awaitable


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
