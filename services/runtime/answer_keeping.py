"""Blocks that decode computed, put into a store's cache as they seal: so that a chat's next turn, and a request that is
resumed elsewhere, finds them. Best effort, and never in a step's way: a copy goes on, its block pinned, after its
request, and what would be too much at a time is not kept."""

from collections.abc import Sequence

from services.core.batch_events import SealedBlock
from services.core.ids import BlockId, RequestKey
from services.runtime.duty import Work
from services.runtime.kv_client import KVClient
from services.runtime.kv_publication import Publication, Published, WriterCalls
from services.runtime.kv_way import Lane
from services.runtime.step_loop import StepLoop

SHARE = 8
"""At most one block in so many is on its way at a time."""


class AnswerKeeping:
    """One publication for each request that seals blocks; on the loop thread."""

    def __init__(self, client: KVClient, loop: StepLoop, *, is_on: bool) -> None:
        self._client = client
        self._loop = loop
        self._is_on = is_on
        self._most = max(loop.batcher.limits.num_blocks // SHARE, 1)
        self._in_flight = 0
        self._kept: dict[RequestKey, Publication] = {}

    def add(self, work: Work, blocks: Sequence[SealedBlock]) -> None:
        """Each of these is pinned, and is let go once it is copied or not wanted."""
        publication = self._publication(work)
        room = self._most - self._in_flight if publication else 0
        for block in blocks[room:]:
            self._loop.batcher.unpin(block.block)
        if self._is_on and len(blocks) > room:
            self._client.not_kept(len(blocks) - room)
        if publication and (kept := blocks[:room]):
            self._in_flight += len(kept)
            publication.add(kept)

    def finish(self, key: RequestKey) -> None:
        """No more come; those added go on."""
        if publication := self._kept.pop(key, None):
            self._client.leave(publication)

    def _publication(self, work: Work) -> Publication | None:
        if (there := self._kept.get(work.key)) is None and (store := self._store_for(work)):
            calls = WriterCalls(done=self._copied, published=_nobody_waits)
            there = self._kept[work.key] = self._client.keep(Lane(work.key, store, work.timeline.parent), calls)
        return there

    def _store_for(self, work: Work) -> str:
        """Where the request's other blocks are, else near, else any; empty if there is none."""
        if not self._is_on:
            return ""
        live = self._client.links.stores()
        wished = (work.kvstore, *(source.kvstore for source in work.sources), *self._client.near_stores(), *live)
        return next((store for store in wished if store in live), "")

    def _copied(self, block: BlockId) -> None:
        self._in_flight -= 1
        self._loop.batcher.unpin(block)
        self._loop.wake()


def _nobody_waits(_: Published) -> None:
    """The request may be long over."""
