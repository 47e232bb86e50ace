"""One worker's end of hand-overs, in a process of its own: a KV cache and clients of a store, near and far.

    python -m handover.worker_end STORE FORMAT BLOCKS

Reads one JSON object a line, `{"do": "claim" | "put" | "get" | "check", "way": "near" | "far", "round": 3}`, and
answers each with one, `{"seconds": ...}` or `{"error": ...}`. Ends with its standard input.
"""

import asyncio
import json
import random
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

import uvloop

from services.core.batch_events import FetchBlock, SealedBlock
from services.core.ids import BlockHash, BlockId, RequestId, RequestKey
from services.core.model_config import KVFormat
from services.engine.compiled.kv_memory import KVMemory
from services.pb import session_pb2
from services.runtime.kv_client import KVClient, Reach
from services.runtime.kv_fetch import Fetch, Fetched, ReaderCalls
from services.runtime.kv_publication import Published, WriterCalls
from services.runtime.kv_way import Lane
from services.runtime.memory_reuse import reuse_large_memory
from services.runtime.process import new_process
from services.runtime.session import PROTOCOL, Terms
from services.runtime.settings import ServiceSettings

STORE_SECONDS = 20.0
"""For which a store that starts is waited for."""
SESSION_SECONDS = 5.0


class WorkerEnd:
    """Blocks of one prompt, whose bytes follow from their format; a reader's are empty until they come."""

    def __init__(self, store: str, kv_format: KVFormat, blocks: int) -> None:
        self._store = store
        self._format = kv_format
        self._count = blocks
        self._memory = KVMemory(kv_format, blocks)
        self._clients: dict[str, KVClient] = {}
        self._claimed: tuple[Fetch, asyncio.Future[Fetched]]

    async def open(self, stack: AsyncExitStack) -> None:
        """Connects both clients; they are closed with `stack`."""
        self._fill(0)
        for way in ("near", "far"):
            process = new_process("decode", ServiceSettings())
            stack.callback(process.telemetry.shutdown)
            hello = session_pb2.Hello(
                protocol=PROTOCOL,
                name=process.identity.name,
                incarnation=process.identity.incarnation,
                fingerprint="benchmark",
                format=str(self._format),
            )
            reach = Reach(patience=STORE_SECONDS, attach=way == "near")
            terms = Terms(hello, SESSION_SECONDS, process.faults)
            client = KVClient(self._memory, terms, process.telemetry, process.metrics, reach)
            self._clients[way] = await stack.enter_async_context(client)
            await client.links.connected(self._store)
            assert bool(client.near_stores()) is (way == "near"), "the store is not where it should be"

    async def do(self, order: dict[str, Any]) -> float:
        """The seconds that it took. AssertionError if blocks were not moved, or others came."""
        way, number = order["way"], order["round"]
        match order["do"]:
            case "claim":
                return self._claim(way, number)
            case "put":
                return await self._put(way, number)
            case "get":
                return await self._get(way, number)
        return self._check()

    # --- private

    def _claim(self, way: str, number: int) -> float:
        done: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()
        fetch = self._clients[way].claim(self._lane(way, number), ReaderCalls(lambda index: None, done.set_result))
        self._claimed = fetch, done
        return 0.0

    async def _put(self, way: str, number: int) -> float:
        self._fill(number)
        done: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        calls = WriterCalls(lambda block: None, done.set_result)
        blocks = [SealedBlock(n, name, BlockId(n), (0,)) for n, name in enumerate(self._names(way, number))]
        publication = self._clients[way].publish(self._lane(way, number), calls)
        began = time.monotonic()
        publication.add(blocks)
        publication.finish()
        published = await done
        seconds = time.monotonic() - began
        assert published.bytes == self._count * self._format.block_bytes, published.error
        return seconds

    async def _get(self, way: str, number: int) -> float:
        fetch, done = self._claimed
        blocks = [FetchBlock(n, name, BlockId(n)) for n, name in enumerate(self._names(way, number))]
        began = time.monotonic()
        fetch.want(blocks, began)
        fetched = await done
        seconds = time.monotonic() - began
        assert fetched.landed == self._count, fetched.error
        return seconds

    def _check(self) -> float:
        there = self._memory.blocks.copy()
        self._fill(0)
        assert (there[:, 8:] == self._memory.blocks[:, 8:]).all(), "other bytes have come"
        return 0.0

    def _fill(self, number: int) -> None:
        """Random bytes, the same in every process; the round's number is at each block's beginning."""
        if not number:
            for block, content in enumerate(self._memory.blocks):
                content[:] = memoryview(random.Random(block).randbytes(content.nbytes))
        self._memory.blocks[:, 0] = number % 256

    def _lane(self, way: str, number: int) -> Lane:
        return Lane(RequestKey(RequestId(f"{way}-{number}"), 0), self._store, "")

    def _names(self, way: str, number: int) -> list[BlockHash]:
        return [BlockHash(f"{way} {number} {block}".encode().ljust(32)) for block in range(self._count)]


async def main() -> None:
    store, kv_format, blocks = sys.argv[1:]
    async with AsyncExitStack() as stack:
        worker = WorkerEnd(store, KVFormat.parsed(kv_format), int(blocks))
        await worker.open(stack)
        print(json.dumps({"seconds": 0}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                answer: dict[str, Any] = {"seconds": await worker.do(json.loads(line))}
            except AssertionError as error:
                answer = {"error": str(error)}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    reuse_large_memory()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
