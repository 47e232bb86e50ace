"""What the scheduler knows of the cluster: workers with a live session, their last word on their load and on the stores
they reach, and what the stores hold.

Recent placements count before the worker's own report of them arrives.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from services.core.ids import BlockHash, RequestKey
from services.core.request import Request
from services.scheduler.decision import Decision
from services.scheduler.load_estimates import LoadEstimates
from services.scheduler.prefix_index import PrefixIndex
from services.scheduler.worker_status import WorkerStatus as WorkerStatus


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

    estimates: LoadEstimates = field(default_factory=LoadEstimates)
    """How busy workers are expected to be, and what they have probably cached."""

    def placed_on(self, request: Request, decision: Decision, now: float, hashes: Sequence[BlockHash] = ()) -> None:
        """A request was given its place: it counts until the workers' own word has it.

        `hashes` are of its full blocks, which its workers will have in their caches.
        """
        self.estimates.placed(request, decision, now, hashes)

    def first_token(self, key: RequestKey, now: float) -> None:
        """A placed request's prompt is computed."""
        self.estimates.first_token(key, now)

    def over(self, key: RequestKey, now: float, answered: int = 0) -> None:
        """A placed attempt has ended after `answered` tokens, 0 if it did not come to its end."""
        self.estimates.over(key, now, answered)

    def update(self, status: WorkerStatus, now: float = 0.0) -> None:
        """A worker's latest word, heard at `now`."""
        self.workers[status.address] = status
        self.others[status.address] = max(status.running + status.waiting - self.placed[status.address], 0)
        self.overloaded.discard(status.address)
        self.estimates.heard(status, self.in_flight(status), now)

    def withdraw(self, address: str) -> None:
        """It says that it takes nothing any more; its next word may say otherwise."""
        if worker := self.workers.get(address):
            self.workers[address] = replace(worker, is_ready=False)
            self.estimates.withdrawn(address)

    def drop(self, address: str) -> None:
        """Its session ended."""
        self.workers.pop(address, None)
        self.others.pop(address, None)
        self.overloaded.discard(address)
        self.estimates.gone(address)

    def count(self, address: str, change: int) -> None:
        """This scheduler has so many more, or fewer, requests on a worker."""
        self.placed[address] += change
        if self.placed[address] <= 0:
            del self.placed[address]
        self.estimates.counted(address, self.others.get(address, 0) + self.placed[address])

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
