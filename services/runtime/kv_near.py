"""The near way: a worker copies straight into the pages of a store on its node, and out of them.

One hop to the transfer thread and one message for as many blocks as there are, up to `BATCH_BYTES`. A writer hashes
what stands in the page; a reader copies, and hashes its copy: it never computes on a page that others can write.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

import xxhash

from services.core.errors import KVCorrupt
from services.core.fault_plan import corrupted
from services.pb import kvstore_pb2
from services.runtime.arena_map import ArenaMap
from services.runtime.codec import handoff_to_pb
from services.runtime.faults import Faults
from services.runtime.kv_links import StoreSession
from services.runtime.kv_way import BlockBytes, GetCalls, GrantedBlock, Lane, PutCalls, WantedBlock
from services.runtime.transfer_thread import TransferThread

BATCH_BYTES = 16 << 20
"""So much is copied without a look at what else there is to do; a hop to the thread costs as much as half a MiB."""
PIECE_BYTES = 512 << 10
"""So much is hashed as soon as it is copied, from the processor's own cache."""

BlockT = TypeVar("BlockT")
FoundT = TypeVar("FoundT")


@dataclass(frozen=True, slots=True)
class NearTools:
    """What the near ways of one worker share."""

    kv: BlockBytes
    block_bytes: int
    thread: TransferThread
    faults: Faults


class NearWay:
    """One session's. Implements `Way`."""

    name: Literal["near", "far"] = "near"

    def __init__(self, tools: NearTools, arena: ArenaMap, session: StoreSession) -> None:
        self._tools = tools
        self._arena = arena
        self._session = session

    async def put(self, lane: Lane, blocks: Sequence[GrantedBlock], tell: PutCalls) -> None:
        """See `Way.put`."""
        handoff = handoff_to_pb(lane.key)

        def written(copied: Sequence[tuple[GrantedBlock, int]]) -> None:
            sealings = [
                kvstore_pb2.Sealing(hash=each.block.hash, generation=each.generation, checksum=checksum)
                for each, checksum in copied
            ]
            message = kvstore_pb2.Written(handoff=handoff, blocks=sealings, traceparent=lane.traceparent)
            self._session.send(kvstore_pb2.StoreDown(written=message))
            tell.copied([each.block for each, _ in copied], len(copied) * self._tools.block_bytes)

        await self._tools.thread.run_each(self._works(self._fill_page, blocks), written)

    async def get(self, lane: Lane, blocks: Sequence[WantedBlock], tell: GetCalls) -> None:
        """See `Way.get`."""

        def filled(copied: Sequence[tuple[WantedBlock, bool]]) -> None:
            for wanted, is_good in copied:
                if is_good:
                    tell.landed(wanted.block, self._tools.block_bytes)
                else:
                    self._doubt(lane, wanted)
                    tell.bad(wanted.block, KVCorrupt("a block does not match its checksum"))

        await self._tools.thread.run_each(self._works(self._fill_block, blocks), filled)

    def _works(
        self, copy: Callable[[BlockT], FoundT], blocks: Sequence[BlockT]
    ) -> Iterator[Callable[[], list[tuple[BlockT, FoundT]]]]:
        """`copy` of each block with what it found, as pieces of work of up to `BATCH_BYTES`."""
        count = max(1, BATCH_BYTES // self._tools.block_bytes)
        for start in range(0, len(blocks), count):
            yield partial(_each, copy, blocks[start : start + count])

    def _doubt(self, lane: Lane, wanted: WantedBlock) -> None:
        doubt = kvstore_pb2.Doubt(handoff=handoff_to_pb(lane.key), hash=wanted.block.hash, generation=wanted.generation)
        if self._session.is_open:
            self._session.send(kvstore_pb2.StoreDown(doubt=doubt))

    # --- on the transfer thread

    def _fill_page(self, granted: GrantedBlock) -> int:
        """The checksum of what stands in the page."""
        page, faults = self._arena.page(granted.page), self._tools.faults
        faults.throttle_thread("kv.put", page.nbytes)
        deed = faults.stall("kv.out")
        digest = xxhash.xxh3_64()
        for part in self._parts():
            self._tools.kv.copy_out(granted.block.block, page[part], part)
            digest.update(page[part])
        if deed.corrupt:
            page[:] = corrupted(page)
        return digest.intdigest()

    def _fill_block(self, wanted: WantedBlock) -> bool:
        """Whether the copy is what the writer wrote."""
        page, faults = self._arena.page(wanted.page), self._tools.faults
        faults.throttle_thread("kv.get", page.nbytes)
        if faults.stall("kv.in").corrupt:
            page = memoryview(corrupted(page))
        digest = xxhash.xxh3_64()
        for part in self._parts():
            digest.update(self._tools.kv.copy_in(wanted.block.block, page[part], part))
        return digest.intdigest() == wanted.checksum

    def _parts(self) -> Iterator[slice]:
        """A block's bytes in pieces."""
        size = self._tools.block_bytes
        return (slice(start, min(start + PIECE_BYTES, size)) for start in range(0, size, PIECE_BYTES))


def _each(copy: Callable[[BlockT], FoundT], blocks: Sequence[BlockT]) -> list[tuple[BlockT, FoundT]]:
    return [(block, copy(block)) for block in blocks]
