"""A machine of the simulated cluster: its worker, the requests that are on it, and what it says of itself."""

from dataclasses import dataclass, field

from services.scheduler.cluster_view import WorkerStatus
from services.scheduler.story import Placement
from services.simulation.dispatcher import FINGERPRINT
from services.simulation.job import Job
from services.simulation.profile import Profile
from services.simulation.worker import SimulatedWorker


@dataclass(slots=True, eq=False)
class Flight:
    """A placed request."""

    placement: Placement
    decode: Job
    prefill: Job | None = None
    computed_at: float = -1.0
    """When its prompt was computed elsewhere; -1: not yet."""
    reserved_at: float = -1.0
    """When the decode worker had room for it; -1: not yet."""


@dataclass(slots=True)
class Machine:
    """A worker, and what is on its way to it or back."""

    worker: SimulatedWorker
    number: int
    service: str
    near: frozenset[str] = frozenset()
    """The stores on it."""
    version: int = 0
    """Of what is known of the end of its step: an older entry on the heap says nothing."""
    is_changed: bool = True
    flights: dict[Job, Flight] = field(default_factory=dict)

    def status(self, profile: Profile, stores: frozenset[str]) -> WorkerStatus:
        """What the worker says of itself; it reaches all `stores`."""
        worker, model = self.worker, self.worker.model
        return WorkerStatus(
            address=worker.address,
            name=worker.address,
            service=self.service,
            fingerprint=FINGERPRINT,
            format=str(profile.kv_format),
            is_ready=True,
            running=len(worker.rows),
            waiting=len(worker.waiting),
            max_running=model.max_running,
            blocks_total=model.num_blocks,
            blocks_used=worker.blocks.used,
            waiting_tokens=worker.waiting_tokens,
            stores=stores,
            near_stores=self.near,
            cost=model.cost,
            step_seconds=model.step_seconds,
            block_size=profile.block_size,
            context_tokens=worker.context_tokens,
        )
