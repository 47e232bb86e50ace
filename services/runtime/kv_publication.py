"""The writer's end of a hand-over: offers blocks, puts those the store lacks, and says when each is no longer needed.

    add, add, ... finish        every block is `done` once, as soon as its bytes are copied or are not wanted
                                `published` once, when all are sealed or the rest has failed
    add, ... abort              every block is `done` once; `published` is not called

A failure is not the request's: the reader computes what does not come. Blocks for the cache go the same way, and are
let go where the store has no room or does not answer. What follows from what is decided in `core/writing.py`; this file
sends, copies and tells.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass

from opentelemetry.trace import Span

from services.core.batch_events import SealedBlock
from services.core.errors import DiptychError, StaleHandoff, WorkerLost, error_from
from services.core.ids import BlockHash, BlockId
from services.core.writing import Page, Writing
from services.core.writing_life import FINAL, Effect, State
from services.pb import kvstore_pb2
from services.runtime.codec import handoff_to_pb
from services.runtime.kv_links import StoreSession
from services.runtime.kv_tools import Tools, reason_of, word_for
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

    def __init__(self, tools: Tools, lane: Lane, calls: WriterCalls, *, is_cache: bool = False) -> None:
        self.lane = lane
        self.since = time.monotonic()
        self.task: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when no copy runs or will, and nothing that was granted is left."""
        self._tools = tools
        self._calls = calls
        self._writing = Writing(is_cache=is_cache)
        self._found: StoreSession | None = None
        """What the search for a session has brought."""
        self._session: StoreSession | None = None
        """Where its end of the hand-over is known."""
        self._way: Way | None = None
        self._bytes = 0
        self._was_paused = False
        self._span: Span | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._step: asyncio.Task[None] = self._start(self._seek(), "seek")

    @property
    def num_unsealed(self) -> int:
        return self._writing.num_unsealed

    def add(self, blocks: Sequence[SealedBlock]) -> None:
        """Offers more blocks, each pinned until it is `done`. One whose hash was added before is not needed."""
        if blocks and self._span is None and self._writing.state not in FINAL:
            self._span = self._tools.telemetry.start("kv.put", self.lane.traceparent)
        self._follow(self._writing.add(blocks))

    def finish(self) -> None:
        """No more blocks will be added; `published` follows."""
        self._follow(self._writing.finish())

    def abort(self) -> None:
        """The request is gone."""
        self._follow(self._writing.abort(WorkerLost("the transfer was given up")))

    # --- what the store says

    def heard(self, message: kvstore_pb2.StoreUp, now: float) -> None:
        match message.WhichOneof("kind"):
            case "wanted":
                said = message.wanted
                pages = {
                    BlockHash(each.hash): Page(each.generation, each.page if each.HasField("page") else -1)
                    for each in said.grants
                }
                self._follow(
                    self._writing.answered(pages, map(BlockHash, said.refused), map(BlockHash, said.not_needed))
                )
            case "available":
                there = [BlockHash(ref.hash) for ref in message.available.blocks]
                self._follow(self._writing.answered({}, not_needed=there))
            case "closed" if not self._writing.is_cache:
                self._follow(self._writing.give_up(error_from(message.closed.reason, message.closed.message)))

    def lost(self) -> None:
        self._follow(self._writing.lost(WorkerLost("the session with the kvstore is lost")))

    # --- what follows

    def _follow(self, effects: Iterable[Effect]) -> None:
        self._give_back()
        for effect in effects:
            self._do(effect)
        for block in self._writing.take_done():
            self._calls.done(block.block)
        self._mind_patience()
        if self._writing.state is State.OVER and self._step.done() and not self.task.done():
            if self._session:
                self._tools.links.unlisten(self._session, self.lane.key, self)
            self.task.set_result(None)

    def _do(self, effect: Effect) -> None:
        match effect:
            case Effect.OFFER:
                self._offer()
            case Effect.PUT if self._way:
                self._step = self._start(self._put(self._way), "put")
            case Effect.STOP:
                self._step.cancel()
            case Effect.LEAVE if not self._writing.is_cache:
                self._say(kvstore_pb2.StoreDown(release=kvstore_pb2.Release(handoff=handoff_to_pb(self.lane.key))))
            case Effect.END:
                self._conclude()
            case Effect.REPORT:
                asyncio.get_running_loop().call_soon(self._calls.published, self._summary())

    def _say(self, message: kvstore_pb2.StoreDown) -> None:
        if self._session and self._session.is_open:
            self._session.send(message)

    def _offer(self) -> None:
        offer, is_cache, handoff = self._writing.take_offer(), self._writing.is_cache, handoff_to_pb(self.lane.key)
        for run in _runs(offer.blocks):
            hashes = [block.hash for block in run]
            said = kvstore_pb2.Offer(handoff=handoff, hashes=hashes, first_index=run[0].index, cache=is_cache)
            self._say(kvstore_pb2.StoreDown(offer=said))
        if offer.is_complete and not is_cache:
            self._say(kvstore_pb2.StoreDown(offer=kvstore_pb2.Offer(handoff=handoff, complete=True)))

    def _give_back(self) -> None:
        """Pages that were lent, and are not filled."""
        if given_up := self._writing.take_given_back():
            written = kvstore_pb2.Written(handoff=handoff_to_pb(self.lane.key))
            for block_hash, page in given_up:
                written.given_up.add(hash=block_hash, generation=page.generation)
            self._say(kvstore_pb2.StoreDown(written=written))

    def _start(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=f"publication-{name}-{self.lane.key}")
        # Not a finally in the task: a task that is cancelled before it began would never reach it.
        task.add_done_callback(self._stepped)
        return task

    def _stepped(self, task: asyncio.Task[None]) -> None:
        """A search for a session, or a batch of copies, is over."""
        error = reason_of(task)
        if self._session is not None:
            self._follow(self._writing.put_ended(error))
        elif self._found is None or not self._found.is_open:
            self._follow(self._writing.give_up(error or WorkerLost("the session with the kvstore is lost")))
        elif self._writing.state in FINAL:
            self._follow(())
        else:
            self._session, self._way = self._found, self._tools.way(self._found)
            self._tools.links.listen(self._found, self.lane.key, self)
            self._follow(self._writing.opened())

    async def _seek(self) -> None:
        links = self._tools.links
        self._found = await (links.live if self._writing.is_cache else links.connected)(self.lane.store)

    async def _put(self, way: Way) -> None:
        if not self._was_paused:
            self._was_paused = True
            await self._tools.faults.wait("kv.put")
        granted = [GrantedBlock(block, *page) for block, page in self._writing.batch()]
        lane = self.lane._replace(traceparent=traceparent(self._span) if self._span else "")
        await way.put(lane, granted, PutCalls(self._copied, self._failed))

    def _copied(self, blocks: Sequence[SealedBlock], size: int) -> None:
        self._bytes += size
        for block in blocks:
            self._writing.copied(block)
        self._follow(())

    def _failed(self, block: SealedBlock, why: DiptychError) -> None:
        self._writing.failed(block, why)
        self._follow(())

    def _mind_patience(self) -> None:
        """From the moment at which the store should have answered."""
        if not self._writing.is_impatient:
            if self._patience:
                self._patience.cancel()
            self._patience = None
        elif self._patience is None:
            patience = self._tools.links.patience
            self._patience = asyncio.get_running_loop().call_later(patience, self._lose_patience)

    def _lose_patience(self) -> None:
        self._follow(self._writing.give_up(WorkerLost("the store does not say what it keeps")))

    def _conclude(self) -> None:
        """What has become of each block is known."""
        writing, sent = self._writing, self._summary()
        became = Counter(word_for(error) for error in writing.gaps)
        became.update(sealed=writing.num_sealed, skipped=writing.num_skipped)
        if not writing.is_aborted:
            became[word_for(writing.error)] += writing.num_dropped
        self._tools.count(self._way, "put", self._bytes, became)
        if self._span:
            self._span.set_attributes(
                {"diptych.blocks": sent.blocks, "diptych.blocks_skipped": sent.skipped, "diptych.bytes": sent.bytes}
            )
            # A reader that left has what it needs, or is gone with its request: nothing went wrong.
            error = None if isinstance(sent.error, StaleHandoff) else sent.error
            self._tools.telemetry.end(self._span, asyncio.CancelledError() if writing.is_aborted else error)

    def _summary(self) -> Published:
        writing = self._writing
        return Published(writing.num_sealed + writing.num_skipped, writing.num_skipped, self._bytes, writing.error)


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
