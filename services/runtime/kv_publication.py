"""The writer's end of a hand-over: offers blocks, puts those the store lacks, and says when each is no longer needed.

    add, add, ... finish        every block is `done` once, as soon as its bytes are copied or are not wanted
                                `published` once, when all are sealed or the rest has failed
    add, ... abort              every block is `done` once; `published` is not called

A failure is not the request's: the reader computes what does not come.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from opentelemetry.trace import Span

from services.core.batch_events import SealedBlock
from services.core.errors import DiptychError, Overloaded, StaleHandoff, WorkerLost, error_from
from services.core.ids import BlockHash, BlockId
from services.pb import kvstore_pb2
from services.runtime.codec import handoff_to_pb
from services.runtime.kv_links import StoreSession
from services.runtime.kv_tools import Tools, outcome, word_for
from services.runtime.kv_way import GrantedBlock, Lane, PutCalls, Way
from services.runtime.telemetry import traceparent


@dataclass(frozen=True, slots=True)
class Published:
    """What became of a publication."""

    blocks: int
    """Sealed in the store now."""
    skipped: int
    """Of these, the ones it had already, whose bytes were not sent."""
    bytes: int
    """Sent."""
    error: DiptychError | None
    """Why the rest was not sealed."""


@dataclass(frozen=True, slots=True)
class WriterCalls:
    """Whom a publication tells; on the loop thread."""

    done: Callable[[BlockId], None]
    """Nothing reads this block any more. Once for every block added, maybe within `add`."""
    published: Callable[[Published], None]


class Publication:
    """One hand-over's blocks on their way into a store. All verbs return at once and are legal at any time."""

    def __init__(self, tools: Tools, lane: Lane, calls: WriterCalls) -> None:
        self.lane = lane
        self.since = time.monotonic()
        self._tools = tools
        self._calls = calls
        self._session: StoreSession | None = None
        self._known: set[BlockHash] = set()
        self._unoffered: list[SealedBlock] = []
        self._unsealed: dict[BlockHash, SealedBlock] = {}
        self._held: dict[BlockHash, BlockId] = {}
        """Blocks that are not done."""
        self._granted: dict[BlockHash, GrantedBlock] = {}
        """Those the store has a page for, to be put next."""
        self._under_way: set[BlockHash] = set()
        """Those that are being put: whatever is heard of them, they are done only when their copies are."""
        self._is_finished = self._is_aborted = self._is_over = False
        self._said_complete = self._was_paused = False
        self._became: Counter[str] = Counter()
        """Of added blocks, in the words of metrics."""
        self._way: Way | None = None
        self._bytes = 0
        self._error: DiptychError | None = None
        self._gap: DiptychError | None = None
        """Why a block was not sealed although the publication went on."""
        self._span: Span | None = None
        self._wake = asyncio.Event()
        self.task = asyncio.create_task(self._run(), name=f"publish-{lane.key}")
        # Not a finally in the task: a task that is cancelled before it began would never reach it.
        self.task.add_done_callback(self._conclude)

    @property
    def num_unsealed(self) -> int:
        return len(self._unsealed)

    def add(self, blocks: Sequence[SealedBlock]) -> None:
        """Offers more blocks, each pinned until it is `done`. One whose hash was added before is not needed."""
        new = [block for block in blocks if block.hash not in self._known]
        needless = [block for block in blocks if block.hash in self._known]
        if self._is_over or self._error or self._is_aborted:
            new, needless = [], list(blocks)
        self._known.update(block.hash for block in new)
        self._unsealed.update((block.hash, block) for block in new)
        self._held.update((block.hash, block.block) for block in new)
        self._unoffered += new
        if new and self._span is None:
            self._span = self._tools.telemetry.start("kv.put", self.lane.traceparent)
        self._wake.set()
        for block in needless:
            self._calls.done(block.block)

    def finish(self) -> None:
        """No more blocks will be added; `published` follows."""
        self._is_finished = True
        self._wake.set()
        if self._is_over:
            asyncio.get_running_loop().call_soon(self._report)

    def abort(self) -> None:
        """The request is gone."""
        self._is_aborted = True
        self.task.cancel()

    # --- what the store says

    def heard(self, message: kvstore_pb2.StoreUp, now: float) -> None:
        match message.WhichOneof("kind"):
            case "wanted":
                self._hear_wanted(message.wanted)
            case "available":
                for ref in message.available.blocks:
                    self._skip(BlockHash(ref.hash))
            case "closed":
                self._fail(error_from(message.closed.reason, message.closed.message))
        self._wake.set()

    def lost(self) -> None:
        self._fail(WorkerLost("the session with the kvstore is lost"))

    # --- private

    def _hear_wanted(self, wanted: kvstore_pb2.Wanted) -> None:
        for grant in wanted.grants:
            if block := self._unsealed.get(BlockHash(grant.hash)):
                page = grant.page if grant.HasField("page") else -1
                self._granted[block.hash] = GrantedBlock(block, grant.generation, page)
        for raw in wanted.refused:
            block = self._unsealed.get(BlockHash(raw))
            if block and block.hash not in self._under_way:
                self._give_up(block, Overloaded("every block of the store is in use"))
        for raw in wanted.not_needed:
            self._skip(BlockHash(raw))

    def _skip(self, block_hash: BlockHash) -> None:
        """The block need not be put. What was granted for it is given back."""
        if block_hash in self._under_way:
            return
        granted = self._granted.pop(block_hash, None)
        if granted and self._session and self._session.is_open:
            written = kvstore_pb2.Written(handoff=handoff_to_pb(self.lane.key))
            written.given_up.add(hash=block_hash, generation=granted.generation)
            self._session.send(kvstore_pb2.StoreDown(written=written))
        if self._sealed(block_hash):
            self._became["skipped"] += 1

    async def _run(self) -> None:
        links, lane = self._tools.links, self.lane
        self._session = await links.connected(lane.store)
        self._way = self._tools.way(self._session)
        links.listen(self._session, lane.key, self)
        while True:
            self._wake.clear()
            self._offer(self._session)
            if self._granted:
                await self._put(self._way)
            elif self._said_complete and not self._unsealed:
                return
            else:
                await self._wake.wait()

    def _offer(self, session: StoreSession) -> None:
        blocks, self._unoffered = self._unoffered, []
        handoff = handoff_to_pb(self.lane.key)
        for run in _runs(blocks):
            hashes = [block.hash for block in run]
            offer = kvstore_pb2.Offer(handoff=handoff, hashes=hashes, first_index=run[0].index)
            session.send(kvstore_pb2.StoreDown(offer=offer))
        if self._is_finished and not self._said_complete:
            self._said_complete = True
            session.send(kvstore_pb2.StoreDown(offer=kvstore_pb2.Offer(handoff=handoff, complete=True)))

    async def _put(self, way: Way) -> None:
        if not self._was_paused:
            self._was_paused = True
            await self._tools.faults.wait("kv.put")
        granted, self._granted = list(self._granted.values()), {}
        self._under_way = {each.block.hash for each in granted}
        lane = self.lane._replace(traceparent=traceparent(self._span) if self._span else "")
        await way.put(lane, granted, PutCalls(self._copied, self._give_up))
        self._under_way.clear()
        for each in granted:
            if self._sealed(each.block.hash):
                self._became["sealed"] += 1

    def _copied(self, block: SealedBlock, size: int) -> None:
        self._bytes += size
        self._done(block.hash)

    def _sealed(self, block_hash: BlockHash) -> bool:
        self._done(block_hash)
        return self._unsealed.pop(block_hash, None) is not None

    def _give_up(self, block: SealedBlock, why: DiptychError) -> None:
        """This block will not be sealed; the others may."""
        if self._sealed(block.hash):
            self._became[word_for(why)] += 1
            self._gap = self._gap or why

    def _done(self, block_hash: BlockHash) -> None:
        if (block := self._held.pop(block_hash, None)) is not None:
            self._calls.done(block)

    def _fail(self, error: DiptychError) -> None:
        if self._error is None and not self.task.done():
            self._error = error
            self.task.cancel()

    def _conclude(self, task: asyncio.Task[None]) -> None:
        self._is_over = True
        self._error = outcome(task, self._error)
        if self._said_complete and not self._unsealed:
            # The reader may leave, and close the hand-over, as soon as it has the last block.
            self._error = self._gap
        if self._session:
            self._tools.links.unlisten(self._session, self.lane.key, self)
            self._release(self._session)
        for block_hash in tuple(self._held):
            self._done(block_hash)
        self._end_span()
        if self._unsealed and not self._is_aborted:
            self._became[word_for(self._error)] += len(self._unsealed)
        self._tools.count(self._way, "put", self._bytes, self._became)
        if self._is_finished:
            self._report()

    def _release(self, session: StoreSession) -> None:
        if session.is_open:
            release = kvstore_pb2.Release(handoff=handoff_to_pb(self.lane.key))
            session.send(kvstore_pb2.StoreDown(release=release))

    def _end_span(self) -> None:
        if self._span:
            sent = self._summary()
            self._span.set_attributes(
                {"diptych.blocks": sent.blocks, "diptych.blocks_skipped": sent.skipped, "diptych.bytes": sent.bytes}
            )
            self._tools.telemetry.end(
                self._span, asyncio.CancelledError() if self._is_aborted else self._what_went_wrong()
            )

    def _what_went_wrong(self) -> DiptychError | None:
        """What went wrong. A reader that left has what it needs, or is gone with its request: nothing did."""
        return None if isinstance(self._error, StaleHandoff) else self._error

    def _summary(self) -> Published:
        sealed, skipped = self._became["sealed"], self._became["skipped"]
        return Published(sealed + skipped, skipped, self._bytes, self._error)

    def _report(self) -> None:
        if not self._is_aborted:
            self._calls.published(self._summary())


def _runs(blocks: Iterable[SealedBlock]) -> Iterator[list[SealedBlock]]:
    """Blocks in stretches of consecutive indexes, as an offer names them."""
    run: list[SealedBlock] = []
    for block in blocks:
        if run and block.index != run[-1].index + 1:
            yield run
            run = []
        run.append(block)
    if run:
        yield run
