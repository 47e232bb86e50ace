"""The reader's end of a hand-over: claims it, gets blocks as they appear, and says when nothing more will come.

    claimed ──want──▶ waits for blocks, gets them: `landed` for each ──▶ `no_more` once
       └──────────────────────── release (at any time) ────────────────────┘  (only if `want` was called)

Whatever goes wrong ends in `no_more`; the worker computes what has not landed. The store lets go at once.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opentelemetry.trace import Span

from services.core.batch_events import FetchBlock
from services.core.errors import DiptychError, KVMissing, WorkerLost, error_from
from services.core.ids import BlockHash
from services.pb import kvstore_pb2
from services.runtime.codec import handoff_to_pb
from services.runtime.kv_links import StoreSession
from services.runtime.kv_tools import Tools, outcome, word_for
from services.runtime.kv_way import GetCalls, Lane, WantedBlock, Way
from services.runtime.telemetry import traceparent


@dataclass(frozen=True, slots=True)
class Fetched:
    """What became of a fetch; moments are on the monotonic clock."""

    landed: int
    bytes: int
    all_there_at: float
    """When the last wanted block was available; the end, if that never was."""
    ended_at: float
    """When all had landed, or it was given up."""
    error: DiptychError | None
    """Why not all have landed."""


@dataclass(frozen=True, slots=True)
class ReaderCalls:
    """Whom a fetch tells; on the loop thread, never within `want`."""

    landed: Callable[[int], None]
    """The block of this index is verified and filled in."""
    no_more: Callable[[Fetched], None]
    """No copy runs or will; once after `want`, also after a release."""


class Fetch:
    """One claimed hand-over. All verbs return at once and are legal at any time."""

    def __init__(self, tools: Tools, lane: Lane, calls: ReaderCalls) -> None:
        self.lane = lane
        self.since = time.monotonic()
        self._tools = tools
        self._calls = calls
        self._session: StoreSession | None = None
        self._missing: dict[BlockHash, FetchBlock] | None = None
        """Wanted, and may still land; None before `want`."""
        self._there: dict[BlockHash, kvstore_pb2.BlockRef] = {}
        """Where the store says that blocks are."""
        self._never: set[BlockHash] = set()
        """Those that it says will not come."""
        self._has_writer = self._is_expected = False
        self._is_complete = self._is_released = self._is_over = False
        self._all_there_at: float | None = None
        self._became: Counter[str] = Counter()
        """Of wanted blocks, in the words of metrics."""
        self._way: Way | None = None
        self._bytes = 0
        self._error: DiptychError | None = None
        self._gap: DiptychError | None = None
        """Why a wanted block did not land although the fetch went on."""
        self._span: Span | None = None
        self._wake = asyncio.Event()
        self.task = asyncio.create_task(self._run(), name=f"fetch-{lane.key}")
        # Not a finally in the task: a task that is cancelled before it began would never reach it.
        self.task.add_done_callback(self._conclude)

    @property
    def num_missing(self) -> int:
        return len(self._missing or ())

    def want(self, blocks: Sequence[FetchBlock], since: float) -> None:
        """Fill these blocks, which stay pinned until `landed` or `no_more`; `since` is on the monotonic clock. Once."""
        self._missing = {block.hash: block for block in blocks}
        self.since = since
        self._note_availability(since)
        self._say_wanted()
        self._wake.set()
        if self._is_over:
            asyncio.get_running_loop().call_soon(self._report)

    def expect(self) -> None:
        """The writer has computed its last block: one that the store has not heard of soon after has lost its way."""
        self._is_expected = True
        self._wake.set()

    def release(self) -> None:
        """The request needs the hand-over no more, or is gone."""
        self._is_released = not self.task.done()
        self.task.cancel()

    # --- what the store says

    def heard(self, message: kvstore_pb2.StoreUp, now: float) -> None:
        match message.WhichOneof("kind"):
            case "available":
                self._has_writer = True
                self._there.update((BlockHash(ref.hash), ref) for ref in message.available.blocks)
                self._never.update(BlockHash(raw) for raw in message.available.never)
                self._is_complete |= message.available.complete
                self._note_availability(now)
            case "closed":
                self._fail(error_from(message.closed.reason, message.closed.message))
        self._wake.set()

    def lost(self) -> None:
        self._fail(WorkerLost("the session with the kvstore is lost"))

    # --- private

    async def _run(self) -> None:
        links, lane = self._tools.links, self.lane
        self._session = await links.connected(lane.store)
        self._way = self._tools.way(self._session)
        links.listen(self._session, lane.key, self)
        self._session.send(kvstore_pb2.StoreDown(claim=kvstore_pb2.Claim(handoff=handoff_to_pb(lane.key))))
        self._say_wanted()
        while self._missing is None or self._missing:
            self._wake.clear()
            missing = self._missing or {}
            for block in [missing[each] for each in self._never if each in missing]:
                self._bad(block, KVMissing("a block of the hand-over does not come"))
            if there := [block for block in missing.values() if block.hash in self._there]:
                await self._get(self._way, there, is_last=len(there) == len(missing))
            elif missing and self._is_complete:
                raise self._gap or KVMissing("the hand-over ended without all of its blocks")
            elif missing or self._missing is None:
                await self._news()
        if self._gap:
            raise self._gap

    def _say_wanted(self) -> None:
        """Once both the session and the need are known. Who needs nothing releases instead."""
        if self._session and self._session.is_open and self._missing:
            want = kvstore_pb2.Want(handoff=handoff_to_pb(self.lane.key), hashes=list(self._missing))
            self._session.send(kvstore_pb2.StoreDown(want=want))

    async def _news(self) -> None:
        patience = self._tools.links.patience if self._is_expected and not self._has_writer else None
        try:
            async with asyncio.timeout(patience):
                await self._wake.wait()
        except TimeoutError:
            raise KVMissing("the writer has not come to the store") from None

    async def _get(self, way: Way, blocks: Sequence[FetchBlock], *, is_last: bool) -> None:
        if self._span is None:
            self._span = self._tools.telemetry.start("kv.get", self.lane.traceparent)
        if is_last:
            # Earlier, a planted delay could hide behind blocks that are still to be computed.
            await self._tools.faults.wait("kv.get")
        lane = self.lane._replace(traceparent=traceparent(self._span))
        refs = [(block, self._there[block.hash]) for block in blocks]
        wanted = [
            WantedBlock(block, ref.generation, ref.page if ref.HasField("page") else -1, ref.checksum)
            for block, ref in refs
        ]
        await way.get(lane, wanted, GetCalls(self._filled, self._bad))

    def _filled(self, block: FetchBlock, size: int) -> None:
        self._became["landed"] += 1
        self._bytes += size
        self._settle(block)
        self._calls.landed(block.index)

    def _bad(self, block: FetchBlock, why: DiptychError) -> None:
        self._gap = self._gap or why
        self._became[word_for(why)] += 1
        self._settle(block)

    def _settle(self, block: FetchBlock) -> None:
        if self._missing is not None:
            self._missing.pop(block.hash, None)

    def _note_availability(self, now: float) -> None:
        if self._missing is not None and self._all_there_at is None and self._missing.keys() <= self._there.keys():
            self._all_there_at = now

    def _fail(self, error: DiptychError) -> None:
        if self._error is None and not self.task.done():
            self._error = error
            self.task.cancel()

    def _conclude(self, task: asyncio.Task[None]) -> None:
        self._is_over = True
        self._error = outcome(task, self._error)
        if self._session:
            self._tools.links.unlisten(self._session, self.lane.key, self)
            if self._session.is_open:
                release = kvstore_pb2.Release(handoff=handoff_to_pb(self.lane.key))
                self._session.send(kvstore_pb2.StoreDown(release=release))
        if self._span:
            self._span.set_attributes({"diptych.blocks": self._became["landed"], "diptych.bytes": self._bytes})
            self._tools.telemetry.end(self._span, asyncio.CancelledError() if self._is_released else self._error)
        if self._missing and not self._is_released:
            self._became[word_for(self._error)] += len(self._missing)
        self._tools.count(self._way, "get", self._bytes, self._became)
        if self._missing is not None:
            self._report()

    def _report(self) -> None:
        now = time.monotonic()
        all_there_at = now if self._all_there_at is None else self._all_there_at
        self._calls.no_more(Fetched(self._became["landed"], self._bytes, all_there_at, now, self._error))
