"""Moves block bytes between a worker's KV cache and a kvstore: one block in memory at a time, copies on the transfer
thread, checksums on the copy. Knows neither offers nor claims.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import grpc.aio
import xxhash

from services.core.batch_events import FetchBlock, SealedBlock
from services.core.errors import KVCorrupt
from services.core.ids import BlockHash, BlockId, RequestKey
from services.pb import kvstore_pb2
from services.runtime.codec import handoff_to_pb
from services.runtime.dial import PART_BYTES, call_metadata
from services.runtime.edge import remote_errors
from services.runtime.kv_links import StoreLinks

T = TypeVar("T")


class BlockBytes(Protocol):
    """Blocks of a KV cache as bytes; both are called on the transfer thread, for blocks that are pinned."""

    def read_block(self, block: BlockId) -> memoryview:
        """All bytes of a block, in host memory; maybe not a copy."""
        ...

    def write_block(self, block: BlockId, content: memoryview) -> None:
        """Fills a block. Raises KVCorrupt for a wrong length."""
        ...


class Lane(NamedTuple):
    """Which hand-over, through the store at which address, for which span."""

    key: RequestKey
    store: str
    traceparent: str


class _Copy(NamedTuple):
    size: int
    checksum: int
    parts: Sequence[bytes]


class _Arrival(NamedTuple):
    """A block as it came in."""

    header: kvstore_pb2.BlockHeader
    content: bytearray


class Carrier:
    """One transfer thread and the calls that feed it."""

    def __init__(self, kv: BlockBytes, links: StoreLinks) -> None:
        self._kv = kv
        self._links = links
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="transfer")

    def close(self) -> None:
        """Once nothing is moved any more."""
        self._thread.shutdown(wait=True)

    async def put(self, lane: Lane, blocks: Iterable[SealedBlock], copied: Callable[[SealedBlock, int], None]) -> None:
        """Puts `blocks` in one stream; `copied(block, bytes)` as soon as a block is no longer read. Returns when all
        are sealed; raises what the store raised."""
        metadata = call_metadata(self._links.token, lane.traceparent)
        call = self._links.bulk(lane.store).Put(metadata=metadata)
        with remote_errors():
            try:
                for block in blocks:
                    copy = await self._on_thread(partial(self._copy, block.block))
                    copied(block, copy.size)
                    await self._write(call, lane.key, block, copy)
                await call.done_writing()
                await call
            except asyncio.InvalidStateError:
                # The store has ended the call before all was written; its status says why.
                await call
            finally:
                call.cancel()

    async def get(self, lane: Lane, blocks: Sequence[FetchBlock], filled: Callable[[FetchBlock, int], None]) -> None:
        """Gets `blocks` in one stream; `filled(block, bytes)` once each is verified and written into the cache.

        Raises KVCorrupt for a block that does not match, and what the store raised.
        """
        expected = {block.hash: block for block in blocks}
        request = kvstore_pb2.GetRequest(
            handoff=handoff_to_pb(lane.key), incarnation=self._links.incarnation, hashes=list(expected)
        )
        metadata = call_metadata(self._links.token, lane.traceparent)
        call = self._links.bulk(lane.store).Get(request, metadata=metadata)
        with remote_errors():
            try:
                async for arrival in _arrivals(call):
                    block = expected.pop(BlockHash(arrival.header.hash), None)
                    if block is None:
                        raise KVCorrupt("a block came that was not asked for")
                    await self._on_thread(partial(self._fill, block.block, arrival))
                    filled(block, len(arrival.content))
            finally:
                call.cancel()

    # --- private

    async def _write(
        self,
        call: "grpc.aio.StreamUnaryCall[kvstore_pb2.PutPart, kvstore_pb2.PutReply]",
        key: RequestKey,
        block: SealedBlock,
        copy: _Copy,
    ) -> None:
        header = kvstore_pb2.BlockHeader(
            handoff=handoff_to_pb(key),
            incarnation=self._links.incarnation,
            index=block.index,
            hash=block.hash,
            size=copy.size,
            checksum=copy.checksum,
        )
        await call.write(kvstore_pb2.PutPart(header=header))
        for part in copy.parts:
            await call.write(kvstore_pb2.PutPart(bytes=part))

    def _copy(self, block: BlockId) -> _Copy:
        """On the transfer thread; after it, the block may change."""
        content = self._kv.read_block(block).cast("B")
        parts = [bytes(content[start : start + PART_BYTES]) for start in range(0, content.nbytes, PART_BYTES)]
        digest = xxhash.xxh3_64()
        for part in parts:
            digest.update(part)
        return _Copy(content.nbytes, digest.intdigest(), parts)

    def _fill(self, block: BlockId, arrival: _Arrival) -> None:
        """On the transfer thread."""
        if xxhash.xxh3_64_intdigest(arrival.content) != arrival.header.checksum:
            raise KVCorrupt("a block does not match its checksum")
        self._kv.write_block(block, memoryview(arrival.content))

    async def _on_thread(self, work: Callable[[], T]) -> T:
        """Runs `work` on the transfer thread. A cancellation is held back until the copy has returned."""
        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
            # Whatever it raised, the cancellation says more.
            future.exception()
            raise


async def _arrivals(call: AsyncIterable[kvstore_pb2.GetPart]) -> AsyncIterator[_Arrival]:
    """Whole blocks out of parts."""
    header, content = kvstore_pb2.BlockHeader(), bytearray()
    async for part in call:
        if part.WhichOneof("kind") == "header":
            header, content = part.header, bytearray()
            continue
        content += part.bytes
        if len(content) >= header.size:
            yield _Arrival(header, content)
