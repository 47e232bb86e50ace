"""A worker's side of the kvstores: publishes hand-overs and fetches them, keeps blocks in the caches and borrows them.
Owns the sessions, the transfer thread and every transfer under way; knows blocks as bytes, never as tensors."""

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple, Self

from services.core.batch_events import FetchBlock
from services.core.model_config import KVFormat
from services.pb import operations_pb2
from services.runtime.kv_attachments import Attachments
from services.runtime.kv_far import FarWay
from services.runtime.kv_fetch import Fetch, ReaderCalls
from services.runtime.kv_links import CONNECT_SECONDS, StoreLinks
from services.runtime.kv_loan import Loan
from services.runtime.kv_near import NearTools
from services.runtime.kv_publication import Publication, WriterCalls
from services.runtime.kv_tools import Tools
from services.runtime.kv_way import BlockBytes, Lane
from services.runtime.metrics import Metrics
from services.runtime.session import Terms
from services.runtime.telemetry import Telemetry
from services.runtime.transfer_thread import TransferThread


class Reach(NamedTuple):
    """How a worker gets to its stores."""

    token: str = ""
    """Of the cluster."""
    patience: float = CONNECT_SECONDS
    """Seconds for which a hand-over waits for what is not there yet."""
    attach: bool = True
    """Map the arena of a store on this node."""


DEFAULT_REACH = Reach()


class KVClient:
    """An async context manager; leaving gives up what is under way and returns when no copy runs any more.

    `terms.hello` carries the worker's incarnation, fingerprint and format: a store refuses those that differ.
    """

    def __init__(
        self, kv: BlockBytes, terms: Terms, telemetry: Telemetry, metrics: Metrics, reach: Reach = DEFAULT_REACH
    ) -> None:
        block_bytes = KVFormat.parsed(terms.hello.format).block_bytes
        self._thread = TransferThread()
        self._near = Attachments(NearTools(kv, block_bytes, self._thread, terms.faults), reach.attach)
        self.links = StoreLinks(terms, reach.token, self._near, reach.patience)
        far = FarWay(kv, block_bytes, self.links, self._thread, terms.faults)
        self._tools = Tools(self.links, self._near, far, telemetry, metrics, terms.faults)
        self._publications: set[Publication] = set()
        self._outliving: set[Publication] = set()
        """Of the publications, those whose request is over."""
        self._fetches: set[Fetch] = set()

    def near_stores(self) -> list[str]:
        """Addresses of stores whose arena is mapped here."""
        return self._near.addresses()

    def publish(self, lane: Lane, calls: WriterCalls) -> Publication:
        """Begins the writer's end of a hand-over."""
        return self._begun(Publication(self._tools, lane, calls))

    def keep(self, lane: Lane, calls: WriterCalls) -> Publication:
        """Begins to put blocks into the store's cache, for whoever comes: those that it has room for, and lacks."""
        return self._begun(Publication(self._tools, lane, calls, is_cache=True))

    def leave(self, publication: Publication) -> None:
        """Its request is over: no more is added, and what was goes on."""
        publication.finish()
        if publication in self._publications:
            self._outliving.add(publication)

    def not_kept(self, blocks: int) -> None:
        """Counts blocks that were to be kept and are not even offered."""
        self._tools.count(None, "put", 0, {"dropped": blocks})

    def claim(self, lane: Lane, calls: ReaderCalls) -> Fetch:
        """Claims a hand-over at once; what of it is wanted may be said later."""
        fetch = Fetch(self._tools, lane, calls)
        self._watch(fetch)
        return fetch

    def borrow(self, lane: Lane, blocks: Sequence[FetchBlock], since: float, calls: ReaderCalls) -> Loan:
        """Gets the longest beginning of these blocks that the store has cached; each stays pinned until it has landed
        or no more comes. A key has at most one loan at a time at one store."""
        loan = Loan(self._tools, lane, blocks, since, calls)
        self._watch(loan)
        return loan

    def holdings(self) -> list[operations_pb2.Holding]:
        """Transfers under way, for the audit."""
        now = time.monotonic()
        puts = [
            ("keeping" if p in self._outliving else "publication", p.lane, now - p.since, p.num_unsealed)
            for p in self._publications
        ]
        gets = [(f.holding, f.lane, now - f.since, f.num_missing) for f in self._fetches]
        return [
            operations_pb2.Holding(
                kind=kind, request_id=lane.key.request_id, attempt=lane.key.attempt, age_seconds=age, count=count
            )
            for kind, lane, age, count in puts + gets
        ]

    def _begun(self, publication: Publication) -> Publication:
        self._publications.add(publication)
        publication.task.add_done_callback(lambda _: self._forget(publication))
        return publication

    def _forget(self, publication: Publication) -> None:
        self._publications.discard(publication)
        self._outliving.discard(publication)

    def _watch(self, fetch: Fetch) -> None:
        self._fetches.add(fetch)
        fetch.task.add_done_callback(lambda _: self._fetches.discard(fetch))

    async def __aenter__(self) -> Self:
        await self.links.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        for publication in self._publications:
            publication.abort()
        for fetch in self._fetches:
            fetch.release()
        tasks = [p.task for p in self._publications] + [f.task for f in self._fetches]
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.links.__aexit__()
        await self._near.close()
        self._thread.close()
