"""The reader's end of a hand-over: claims it, gets blocks as they appear, and says when nothing more will come.

    claimed ──want──▶ waits for blocks, gets them: `landed` for each ──▶ `no_more` once
       └──────────────────────── release (at any time) ────────────────────┘  (only if `want` was called)

Whatever goes wrong ends in `no_more`; the worker computes what has not landed. The store lets go at once. What follows
from what is decided in `core/reading.py`; this file sends, copies and tells.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass

from opentelemetry.trace import Span

from services.core.batch_events import FetchBlock
from services.core.errors import DiptychError, KVMissing, WorkerLost, error_from
from services.core.ids import BlockHash
from services.core.reading import FINAL, Effect, Place, Reading
from services.pb import kvstore_pb2
from services.runtime.codec import handoff_to_pb
from services.runtime.kv_links import StoreSession
from services.runtime.kv_tools import Tools, reason_of, word_for
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
    """Why not all have landed; of a loan, all that were lent."""


@dataclass(frozen=True, slots=True)
class ReaderCalls:
    """Whom a fetch tells; on the loop thread, never within `want`."""

    landed: Callable[[int], None]
    """The block of this index is verified and filled in."""
    no_more: Callable[[Fetched], None]
    """No copy runs or will; once after `want`, also after a release."""


class Fetch:
    """One claimed hand-over. All verbs return at once and are legal at any time."""

    holding = "fetch"
    span_name = "kv.get"
    silence = "the writer has not come to the store"

    def __init__(self, tools: Tools, lane: Lane, calls: ReaderCalls) -> None:
        self.lane = lane
        self.since = time.monotonic()
        self.task: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when no copy runs or will, and whoever wanted something was told."""
        self._tools = tools
        self._calls = calls
        self._reading = Reading()
        self._found: StoreSession | None = None
        """What the search for a session has brought."""
        self._session: StoreSession | None = None
        """Where its end of the hand-over is known."""
        self._way: Way | None = None
        self._bytes = 0
        self._span: Span | None = None
        self._is_released = self._is_over = False
        self._patience: asyncio.TimerHandle | None = None
        self._step: asyncio.Task[None] = self._start(self._seek(), "seek")

    @property
    def num_missing(self) -> int:
        return len(self._reading.missing)

    def want(self, blocks: Sequence[FetchBlock], since: float) -> None:
        """Fill these blocks, which stay pinned until `landed` or `no_more`; `since` is on the monotonic clock. Once."""
        self.since = since
        self._follow(self._reading.want(blocks, since))

    def expect(self) -> None:
        """The writer has computed its last block: one that the store has not heard of soon after has lost its way."""
        self._reading.expect()
        self._follow(())

    def release(self) -> None:
        """The request needs the hand-over no more, or is gone."""
        self._is_released = self._reading.state not in FINAL
        self._follow(self._reading.give_up(WorkerLost("the transfer was given up")))

    # --- what the store says

    def heard(self, message: kvstore_pb2.StoreUp, now: float) -> None:
        match message.WhichOneof("kind"):
            case "available":
                said = message.available
                never = [BlockHash(raw) for raw in said.never]
                self._follow(self._reading.available(places_of(said.blocks), never, said.complete, now))
            case "closed":
                self._follow(self._reading.give_up(error_from(message.closed.reason, message.closed.message)))

    def lost(self) -> None:
        self._follow(self._reading.lost(WorkerLost("the session with the kvstore is lost")))

    # --- what is said to it

    def _ask(self) -> kvstore_pb2.StoreDown:
        return kvstore_pb2.StoreDown(claim=kvstore_pb2.Claim(handoff=handoff_to_pb(self.lane.key)))

    def _lacking(self) -> kvstore_pb2.StoreDown | None:
        """Who needs nothing leaves instead."""
        if not (hashes := self._reading.missing):
            return None
        return kvstore_pb2.StoreDown(want=kvstore_pb2.Want(handoff=handoff_to_pb(self.lane.key), hashes=hashes))

    def _goodbye(self) -> kvstore_pb2.StoreDown:
        return kvstore_pb2.StoreDown(release=kvstore_pb2.Release(handoff=handoff_to_pb(self.lane.key)))

    async def _connected(self) -> StoreSession:
        return await self._tools.links.connected(self.lane.store)

    # --- what follows

    def _follow(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self._do(effect)
        self._mind_patience()
        if self._reading.state in FINAL and not self._is_over:
            self._is_over = True
            self._conclude()
        if self._is_over and self._step.done() and not self.task.done():
            self.task.set_result(None)

    def _do(self, effect: Effect) -> None:
        match effect:
            case Effect.ASK:
                self._say(self._ask())
            case Effect.WANT:
                self._say(self._lacking())
            case Effect.GET if self._way:
                self._step = self._start(self._get(self._way), "get")
            case Effect.STOP:
                self._step.cancel()
            case Effect.LEAVE:
                self._say(self._goodbye())
            case Effect.REPORT:
                asyncio.get_running_loop().call_soon(self._report)

    def _say(self, message: kvstore_pb2.StoreDown | None) -> None:
        if message and self._session and self._session.is_open:
            self._session.send(message)

    def _start(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=f"{self.holding}-{name}-{self.lane.key}")
        # Not a finally in the task: a task that is cancelled before it began would never reach it.
        task.add_done_callback(self._stepped)
        return task

    def _stepped(self, task: asyncio.Task[None]) -> None:
        """A search for a session, or a batch of copies, is over."""
        error = reason_of(task)
        if self._session is not None:
            self._follow(self._reading.copied(error))
        elif self._found is None or not self._found.is_open:
            self._follow(self._reading.give_up(error or WorkerLost("the session with the kvstore is lost")))
        elif self._reading.state in FINAL:
            self._follow(())
        else:
            self._session, self._way = self._found, self._tools.way(self._found)
            self._tools.links.listen(self._found, self.lane.key, self)
            self._follow(self._reading.opened())

    async def _seek(self) -> None:
        self._found = await self._connected()

    async def _get(self, way: Way) -> None:
        if self._span is None:
            self._span = self._tools.telemetry.start(self.span_name, self.lane.traceparent)
        if self._reading.is_last_batch:
            # Earlier, a planted delay could hide behind blocks that are still to be computed.
            await self._tools.faults.wait("kv.get")
        lane = self.lane._replace(traceparent=traceparent(self._span))
        wanted = [WantedBlock(block, *place) for block, place in self._reading.batch()]
        await way.get(lane, wanted, GetCalls(self._filled, self._bad))

    def _filled(self, block: FetchBlock, size: int) -> None:
        self._bytes += size
        self._reading.block_landed(block)
        self._calls.landed(block.index)

    def _bad(self, block: FetchBlock, why: DiptychError) -> None:
        self._reading.block_failed(block, why)

    def _mind_patience(self) -> None:
        """From the moment at which somebody should have spoken."""
        if not self._reading.is_impatient:
            if self._patience:
                self._patience.cancel()
            self._patience = None
        elif self._patience is None:
            patience = self._tools.links.patience
            self._patience = asyncio.get_running_loop().call_later(patience, self._lose_patience)

    def _lose_patience(self) -> None:
        self._follow(self._reading.give_up(KVMissing(self.silence)))

    def _conclude(self) -> None:
        """Nothing is copied and nothing is said any more."""
        if self._session:
            self._tools.links.unlisten(self._session, self.lane.key, self)
        reading = self._reading
        if self._span:
            self._span.set_attributes({"diptych.blocks": reading.landed, "diptych.bytes": self._bytes})
            self._tools.telemetry.end(self._span, asyncio.CancelledError() if self._is_released else reading.error)
        became = Counter(word_for(error) for error in reading.bad)
        became["landed"] = reading.landed
        if reading.missing and not self._is_released:
            became[word_for(reading.error)] += len(reading.missing)
        self._tools.count(self._way, "get", self._bytes, became)

    def _report(self) -> None:
        now, reading = time.monotonic(), self._reading
        all_there_at = now if reading.all_there_at is None else reading.all_there_at
        self._calls.no_more(Fetched(reading.landed, self._bytes, all_there_at, now, reading.error))


def places_of(refs: Iterable[kvstore_pb2.BlockRef]) -> dict[BlockHash, Place]:
    """By hash, as a store tells a reader."""
    return {
        BlockHash(ref.hash): Place(ref.generation, ref.page if ref.HasField("page") else -1, ref.checksum)
        for ref in refs
    }
