"""Beginnings of prompts that stores have in their caches: which store to ask, what that would cost, and the loans.

Best effort: a store that is away, slow or lends nothing costs the bounded patience of a loan, and the worker computes.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

from services.core.batch_events import Reserved
from services.core.block_facts import BlockSource
from services.core.ids import RequestKey
from services.core.prefix_fetch import NOTHING_KNOWN, FetchCost, FetchPace, KnownPrefix
from services.runtime.duty import Work
from services.runtime.kv_client import KVClient
from services.runtime.kv_fetch import Fetched, ReaderCalls
from services.runtime.kv_loan import Loan
from services.runtime.kv_way import Lane
from services.runtime.step_loop import StepLoop

NEAR_GUESS = FetchCost(0.003, 0.0008)
FAR_GUESS = FetchCost(0.006, 0.003)
"""Until something was fetched: slower than loopback and shared memory are."""

Over = Callable[[Work, float], None]
"""Told that nothing more comes for a work, and since when."""


class PrefixLoans:
    """At most one loan for each request; on the loop thread."""

    def __init__(self, client: KVClient, loop: StepLoop, *, is_on: bool) -> None:
        self._client = client
        self._loop = loop
        self._is_on = is_on
        self._paces: dict[tuple[str, bool], FetchPace] = {}
        self._loans: dict[RequestKey, Loan] = {}
        self._open: set[RequestKey] = set()

    def known(self, sources: Sequence[BlockSource], now: float) -> KnownPrefix:
        """What the best of these stores is said to hold, and what fetching it costs."""
        source = self._best(sources)
        if source is None:
            return NOTHING_KNOWN
        return KnownPrefix(source.blocks, self._pace(source.kvstore).cost(now))

    def borrow(self, work: Work, event: Reserved, now: float, over: Over) -> None:
        """Fill these blocks; `over` is called once for a request that is still here, when no copy runs any more."""
        source = self._best(work.sources)
        if source is None or work.key in self._open:
            self._loop.batcher.no_more(work.key)
            over(work, now)
            return
        store = source.kvstore
        calls = ReaderCalls(
            landed=partial(self._landed, work.key),
            no_more=partial(self._over, work, self._pace(store), now, over),
        )
        self._open.add(work.key)
        lane = Lane(work.key, store, work.timeline.traceparent)
        self._loans[work.key] = self._client.borrow(lane, event.fetch, now, calls)

    def release(self, key: RequestKey) -> None:
        """The request is gone; nothing if nothing was borrowed for it."""
        if loan := self._loans.pop(key, None):
            loan.release()

    def _landed(self, key: RequestKey, index: int) -> None:
        self._loop.batcher.landed(key, index)

    def _over(self, work: Work, pace: FetchPace, since: float, over: Over, fetched: Fetched) -> None:
        self._open.discard(work.key)
        self._loop.batcher.no_more(work.key)
        self._loop.wake()
        if self._loans.pop(work.key, None) is None:
            return
        pace.note(fetched.landed, fetched.ended_at - since, time.monotonic())
        if not work.has_spoken:
            here = self._loop.batcher.computed(work.key)
            work.cached_tokens = max(work.cached_tokens, min(here, len(work.request.prompt)))
        over(work, fetched.ended_at)

    def _best(self, sources: Sequence[BlockSource]) -> BlockSource | None:
        """With the most blocks of those there is a session with; among equals a near one."""
        if not self._is_on:
            return None
        live, near = set(self._client.links.stores()), set(self._client.near_stores())
        there = [source for source in sources if source.kvstore in live]
        return max(there, key=lambda source: (source.blocks, source.kvstore in near), default=None)

    def _pace(self, store: str) -> FetchPace:
        is_near = store in self._client.near_stores()
        guess = NEAR_GUESS if is_near else FAR_GUESS
        return self._paces.setdefault((store, is_near), FetchPace(guess))
