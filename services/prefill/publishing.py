"""Prefill's duty: get the prompt's beginning where a store has it, put each block as it is sealed, draw the first
token, and report when the store has everything."""

from collections.abc import Sequence
from functools import partial

from services.core.batch_events import Reserved, SealedBlock
from services.core.block_facts import BlockSource
from services.core.ids import BlockId, RequestKey
from services.core.ledger import Segment
from services.core.prefix_fetch import KnownPrefix
from services.core.request import FinishReason, Role
from services.runtime import codec
from services.runtime.duty import Work
from services.runtime.kv_client import KVClient
from services.runtime.kv_publication import Publication, Published, WriterCalls
from services.runtime.kv_way import Lane
from services.runtime.prefix_loans import PrefixLoans
from services.runtime.step_loop import StepLoop


class Publishing:
    """One publication per request, from its start to its last sealed block."""

    roles = frozenset({Role.PREFILL})

    def __init__(self, client: KVClient, loop: StepLoop, *, prefix_fetch: bool = True) -> None:
        self._client = client
        self._loop = loop
        self._loans = PrefixLoans(client, loop, is_on=prefix_fetch)
        self._publications: dict[RequestKey, Publication] = {}

    def known(self, sources: Sequence[BlockSource], now: float) -> KnownPrefix:
        return self._loans.known(sources, now)

    def begin(self, work: Work, now: float) -> None:
        work.timeline.enter("prefill.queue", now)
        lane = Lane(work.key, work.kvstore, work.timeline.parent)
        calls = WriterCalls(done=self._copied, published=partial(self._handed_over, work))
        self._publications[work.key] = self._client.publish(lane, calls)

    def started(self, work: Work, now: float) -> None:
        if work.timeline.segment == "prefill.queue":
            work.timeline.enter("prefill.compute", now, {"diptych.prompt_tokens": len(work.request.prompt)})

    def reserved(self, work: Work, event: Reserved, now: float) -> None:
        work.timeline.enter("prefill.fetch", now)
        self._loans.borrow(work, event, now, self._fetched)

    def planned(self, work: Work, now: float) -> None:
        """A chunk more or less changes nothing here."""

    def sealed(self, work: Work, blocks: tuple[SealedBlock, ...]) -> None:
        self._publications[work.key].add(blocks)

    def first_token(self, work: Work, now: float) -> None:
        """It is drawn here."""

    def emitted(self, work: Work, now: float) -> tuple[Segment, ...]:
        work.timeline.close(now)
        return work.timeline.take()

    def finished(self, work: Work, reason: FinishReason) -> bool:
        if reason is FinishReason.HANDED_OVER:
            self._publications[work.key].finish()
            return False
        self.abandon(work)
        return True

    def abandon(self, work: Work) -> None:
        self._loans.release(work.key)
        if publication := self._publications.pop(work.key, None):
            publication.abort()

    def _fetched(self, work: Work, now: float) -> None:
        if work.timeline.segment == "prefill.fetch":
            work.timeline.enter("prefill.compute", now)

    def _copied(self, block: BlockId) -> None:
        """Nothing reads this block any more; a request may be waiting for it."""
        self._loop.batcher.unpin(block)
        self._loop.wake()

    def _handed_over(self, work: Work, published: Published) -> None:
        """Also where not all blocks were sealed: decode knows, and computes them."""
        self._publications.pop(work.key, None)
        work.conclude(codec.finished_event(work.key, FinishReason.HANDED_OVER, cached_tokens=work.cached_tokens))
