"""The far way: block bytes streamed over gRPC in parts of about 1 MiB.

Copies run on the transfer thread, checksums are made of the copy. A writer sends one block after the other; a reader
gives the store credit for so many parts at a time, and more as it takes them. Knows neither offers nor claims.
"""

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Literal, NamedTuple

import xxhash

from services.core.batch_events import FetchBlock
from services.core.errors import DiptychError, KVCorrupt, KVMissing, error_from
from services.core.fault_plan import corrupted
from services.core.ids import BlockHash, BlockId, RequestKey
from services.pb import kvstore_pb2
from services.runtime.codec import handoff_to_pb
from services.runtime.dial import PART_BYTES, call_metadata
from services.runtime.edge import remote_errors
from services.runtime.faults import Faults
from services.runtime.incoming import Arrival, Incoming
from services.runtime.kv_links import StoreLinks
from services.runtime.kv_way import BlockBytes, GetCalls, GrantedBlock, Lane, PutCalls, WantedBlock
from services.runtime.part_stream import PartStream
from services.runtime.transfer_thread import TransferThread, settled

Outcome = tuple[FetchBlock, DiptychError | None]
"""Why a block is not filled in; None if it is."""


class Filled(NamedTuple):
    """What has become of blocks with a lot of parts."""

    outcomes: Collection[Outcome]
    end: KVCorrupt | None = None
    """Why nothing more of the stream can be taken."""


class FarWay:
    """For all stores that are not near. Implements `Way`."""

    name: Literal["near", "far"] = "far"

    def __init__(
        self, kv: BlockBytes, block_bytes: int, links: StoreLinks, thread: TransferThread, faults: Faults
    ) -> None:
        self._kv = kv
        self._block_bytes = block_bytes
        self._links = links
        self._thread = thread
        self._faults = faults

    async def put(self, lane: Lane, blocks: Sequence[GrantedBlock], tell: PutCalls) -> None:
        """See `Way.put`. Raises what the store raised."""
        metadata = call_metadata(self._links.token, lane.traceparent)
        call = self._links.bulk(lane.store).Put(metadata=metadata)
        passage = self._faults.passage("kv.part", _corrupted)
        with remote_errors():
            try:
                for granted in blocks:
                    content, checksum = await self._thread.run(partial(self._copy, granted.block.block))
                    tell.copied([granted.block], len(content))
                    await self._faults.throttle("kv.put", len(content))
                    for part in self._parts(lane.key, granted, content, checksum):
                        for each in await passage.through(part):
                            await call.write(each)
                for each in passage.rest():
                    await call.write(each)
                await call.done_writing()
                _tell_refused(await call, blocks, tell)
            except asyncio.InvalidStateError:
                # The store has ended the call before all was written; its status says why.
                await call
            finally:
                call.cancel()

    async def get(self, lane: Lane, blocks: Sequence[WantedBlock], tell: GetCalls) -> None:
        """See `Way.get`. Raises what the store raised, and KVCorrupt for what is no part."""
        left = {each.block.hash: each.block for each in blocks}
        opening = kvstore_pb2.PullOpen(
            handoff=handoff_to_pb(lane.key),
            incarnation=self._links.incarnation,
            is_loan=lane.is_loan,
            hashes=list(left),
        )
        call = self._links.pull(lane.store)(metadata=call_metadata(self._links.token, lane.traceparent))
        with remote_errors():
            async with PartStream(call, opening) as parts:
                await self._take(parts, left, tell)
                await parts.finish()
        for block in left.values():
            tell.bad(block, KVMissing("the store sent fewer blocks than it has"))

    # --- private

    async def _take(self, parts: PartStream, left: dict[BlockHash, FetchBlock], tell: GetCalls) -> None:
        """Takes what has become of a block out of `left`. One lot is filled in while the next one is gathered."""
        incoming, filling = Incoming(self._block_bytes), None
        try:
            while lot := await parts.next():
                for raw in lot:
                    await self._faults.throttle("kv.get", len(raw))
                if filling:
                    self._tell(await filling, left, tell)
                work = partial(self._fill, incoming, lot, left)
                filling = asyncio.create_task(self._thread.run(work), name="fill")
            if filling:
                self._tell(await filling, left, tell)
        finally:
            if filling:
                filling.cancel()
                await settled(filling)

    def _tell(self, filled: Filled, left: dict[BlockHash, FetchBlock], tell: GetCalls) -> None:
        for block, error in filled.outcomes:
            del left[block.hash]
            if error is None:
                tell.landed(block, self._block_bytes)
            else:
                tell.bad(block, error)
        if filled.end:
            raise filled.end

    def _parts(
        self, key: RequestKey, granted: GrantedBlock, content: bytearray, checksum: int
    ) -> Iterator[kvstore_pb2.PutPart]:
        header = kvstore_pb2.BlockHeader(
            handoff=handoff_to_pb(key),
            incarnation=self._links.incarnation,
            index=granted.block.index,
            hash=granted.block.hash,
            size=len(content),
            checksum=checksum,
        )
        yield kvstore_pb2.PutPart(header=header)
        for start in range(0, len(content), PART_BYTES):
            yield kvstore_pb2.PutPart(bytes=bytes(content[start : start + PART_BYTES]))

    def _copy(self, block: BlockId) -> tuple[bytearray, int]:
        """On the transfer thread; after it, the block may change. With its checksum."""
        content = bytearray(self._block_bytes)
        self._kv.copy_out(block, memoryview(content))
        checksum = xxhash.xxh3_64_intdigest(content)
        if self._faults.stall("kv.out").corrupt:
            content[:] = corrupted(content)
        return content, checksum

    def _fill(self, incoming: Incoming, lot: Sequence[bytes], left: Mapping[BlockHash, FetchBlock]) -> Filled:
        """On the transfer thread. A block that was not asked for, or is there already, is passed over: its place may be
        another's by now."""
        outcomes: dict[BlockHash, Outcome] = {}
        try:
            for arrival in chain.from_iterable(map(incoming.take, lot)):
                block = left.get(arrival.hash)
                if block and block.hash not in outcomes:
                    outcomes[block.hash] = block, self._fault_of(arrival, block)
        except KVCorrupt as error:
            return Filled(outcomes.values(), error)
        return Filled(outcomes.values())

    def _fault_of(self, arrival: Arrival, block: FetchBlock) -> DiptychError | None:
        """None if the block is what its writer wrote, and filled in."""
        if arrival.refusal:
            return error_from(arrival.refusal, "the store does not give out a block")
        content = arrival.content
        if self._faults.stall("kv.in").corrupt:
            content = memoryview(corrupted(content))
        if xxhash.xxh3_64_intdigest(content) != arrival.checksum:
            return KVCorrupt("a block does not match its checksum")
        self._kv.copy_in(block.block, content)
        return None


def _tell_refused(reply: kvstore_pb2.PutReply, blocks: Sequence[GrantedBlock], tell: PutCalls) -> None:
    by_hash = {granted.block.hash: granted.block for granted in blocks}
    for refusal in reply.refused:
        if block := by_hash.get(BlockHash(refusal.hash)):
            tell.failed(block, error_from(refusal.reason, refusal.message))


def _corrupted(part: kvstore_pb2.PutPart) -> kvstore_pb2.PutPart:
    return kvstore_pb2.PutPart(bytes=corrupted(part.bytes)) if part.bytes else part
