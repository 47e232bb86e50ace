"""What the scheduler knows of the cluster: workers with a live session, their last word on their load and on the stores
they reach, and what the stores hold.

Recent placements count before the worker's own report of them arrives.
"""

from collections import Counter
from dataclasses import dataclass, field, replace

from services.scheduler.prefix_index import PrefixIndex


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker as it last described itself."""

    address: str
    name: str
    service: str
    """`prefill` or `decode`."""
    fingerprint: str
    format: str
    is_ready: bool
    running: int
    waiting: int
    max_running: int
    blocks_total: int
    blocks_used: int
    waiting_tokens: int
    stores: frozenset[str] = frozenset()
    """Addresses of stores it has a session with."""
    near_stores: frozenset[str] = frozenset()
    """Of these, those it copies to and from without a network."""


@dataclass(slots=True)
class ClusterView:
    """Mutable; one per scheduler. The policy only reads it."""

    workers: dict[str, WorkerStatus] = field(default_factory=dict)
    """By address; only those with a live session."""
    kvstores: dict[str, str] = field(default_factory=dict)
    """Stores that are configured or announced: address to name."""
    unready_stores: set[str] = field(default_factory=set)
    """Addresses of stores that say they take nothing."""
    prefixes: PrefixIndex = field(default_factory=PrefixIndex)
    """What the stores hold."""
    placed: Counter[str] = field(default_factory=Counter)
    """Requests this scheduler has on each worker now."""
    overloaded: set[str] = field(default_factory=set)
    """Workers that refused a request for want of room; asked again when they have spoken, or a moment later."""

    others: dict[str, int] = field(default_factory=dict)
    """Requests that other schedulers had on each worker when it last spoke."""

    def update(self, status: WorkerStatus) -> None:
        """A worker's latest word."""
        self.workers[status.address] = status
        self.others[status.address] = max(status.running + status.waiting - self.placed[status.address], 0)
        self.overloaded.discard(status.address)

    def withdraw(self, address: str) -> None:
        """It says that it takes nothing any more; its next word may say otherwise."""
        if worker := self.workers.get(address):
            self.workers[address] = replace(worker, is_ready=False)

    def drop(self, address: str) -> None:
        """Its session ended."""
        self.workers.pop(address, None)
        self.others.pop(address, None)
        self.overloaded.discard(address)

    def count(self, address: str, change: int) -> None:
        """This scheduler has so many more, or fewer, requests on a worker."""
        self.placed[address] += change
        if self.placed[address] <= 0:
            del self.placed[address]

    def pool(self, service: str) -> list[WorkerStatus]:
        """Ready workers of a service, in a stable order."""
        ready = [worker for worker in self.workers.values() if worker.service == service and worker.is_ready]
        return sorted(ready, key=lambda worker: worker.address)

    def stores_of(self, *workers: WorkerStatus) -> frozenset[str]:
        """Stores that all of these have a session with: a store that has died costs a request nothing."""
        return frozenset.intersection(*(worker.stores for worker in workers)) - self.unready_stores

    def name_of(self, store: str) -> str:
        """For people; its address if it is known only from workers."""
        return self.kvstores.get(store, store)

    def in_flight(self, worker: WorkerStatus) -> int:
        """Requests on a worker: this scheduler's own, counted as they come and go, and those of others."""
        return self.others.get(worker.address, 0) + self.placed[worker.address]

    def has_room(self, worker: WorkerStatus) -> bool:
        """Whether another request would run at once rather than queue on the worker."""
        return worker.address not in self.overloaded and self.in_flight(worker) < worker.max_running
