"""A trace through a cluster on virtual time: what happens when, and who is told.

One clock, one heap of times. The first machines have a prefill worker and a store near it each, the others a decode
worker; in a cluster without a split every machine has a worker that does both. Times of messages are constants of the
profile.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from services.core.errors import DiptychError
from services.core.request import Role
from services.scheduler.cluster_view import WorkerStatus
from services.scheduler.policies import Place
from services.scheduler.story import Placement
from services.simulation.block_cache import StoreBlocks
from services.simulation.dispatcher import FINGERPRINT, Dispatcher
from services.simulation.job import Job, State
from services.simulation.names import names_of
from services.simulation.network import Network
from services.simulation.outcome import Outcome
from services.simulation.profile import Profile
from services.simulation.traces import Trace
from services.simulation.worker import Drew, Happening, SimulatedWorker, Started

WORD_SECONDS = 0.5
"""Workers tell their load so often."""
MOST_STORES = 256
"""As many as a scheduler knows of."""


@dataclass(frozen=True, slots=True)
class Pools:
    """How many workers of each kind; only whole ones, or none."""

    prefill: int
    decode: int
    whole: int = 0

    @property
    def machines(self) -> int:
        return self.prefill + self.decode + self.whole


@dataclass(slots=True, eq=False)
class _Flight:
    """A placed request."""

    placement: Placement
    decode: Job
    prefill: Job | None = None
    computed_at: float = -1.0
    """When its prompt was computed elsewhere; -1: not yet."""
    reserved_at: float = -1.0
    """When the decode worker had room for it; -1: not yet."""


@dataclass(slots=True)
class _Machine:
    worker: SimulatedWorker
    number: int
    service: str
    version: int = 0
    """Of what is known of the end of its step: an older entry on the heap says nothing."""
    is_changed: bool = True
    flights: dict[Job, _Flight] = field(default_factory=dict)


class Cluster:
    """Runs once."""

    def __init__(self, profile: Profile, pools: Pools, place: Place, trace: Trace, limits: tuple[float, ...]) -> None:
        self._profile = profile
        self._trace = trace
        self._now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._entries = 0
        self._under_way = 0
        """Requests that have come, or will."""
        self._limits = limits
        self.outcomes = [Outcome(row.at, row.prompt, row.answer, long_gaps=(0,) * len(limits)) for row in trace]
        self._dispatcher = Dispatcher(place, self._begin, self._refuse)
        self._network = Network(profile.wires, pools.machines)
        kinds = (
            [("prefill", "prefill", profile.prefill)] * pools.prefill
            + [("decode", "decode", profile.decode)] * pools.decode
            + [("whole", "decode", profile.whole)] * pools.whole
        )
        self.machines: dict[str, _Machine] = {}
        for number, (kind, service, model) in enumerate(kinds):
            worker = SimulatedWorker(f"{kind}-{number:04d}", model, profile.block_size, limits)
            self.machines[worker.address] = _Machine(worker, number, service)
        count = min(pools.prefill, MOST_STORES)
        self.stores = {f"store-{each:04d}": StoreBlocks(profile.store_blocks) for each in range(count)}
        self._store_machine = {f"store-{each:04d}": each for each in range(count)}

    def run(self) -> None:
        """Until the last answer is complete."""
        self._under_way = len(self._trace)
        self._at(0.0, self._words)
        for number, row in enumerate(self._trace):
            self._at(row.at, lambda number=number: self._arrive(number))  # type: ignore[misc]
        while self._heap and self._under_way:
            self._now, _, act = heappop(self._heap)
            act()

    @property
    def now(self) -> float:
        return self._now

    # --- requests

    def _arrive(self, number: int) -> None:
        row = self._trace[number]
        names = names_of(row, number, self._profile.block_size)
        self._dispatcher.arrived(number, (row.prompt, row.answer), names, self._now)
        self._dispatcher.assign(self._now)

    def _refuse(self, number: int, error: DiptychError) -> None:
        self.outcomes[number].refused = error.reason
        self._under_way -= 1

    def _begin(self, number: int, placement: Placement) -> None:
        row, outcome = self._trace[number], self.outcomes[number]
        outcome.placed, outcome.is_split = self._now, placement.is_split
        names = names_of(row, number, self._profile.block_size)
        fetches = max((source.blocks for source in placement.sources), default=0)
        if not placement.is_split:
            whole = Job(number, Role.WHOLE, row.prompt, row.answer, names, fetches)
            self._send(placement.decode, whole, _Flight(placement, whole))
            return
        decode = Job(number, Role.DECODE, row.prompt, row.answer - 1, names, awaits_first=True)
        prefill = Job(number, Role.PREFILL, row.prompt, 1, names, fetches)
        flight = _Flight(placement, decode, prefill)
        self._send(placement.decode, decode, flight)
        self._send(placement.prefill, prefill, flight)

    def _send(self, address: str, job: Job, flight: _Flight) -> None:
        machine = self.machines[address]
        machine.flights[job] = flight
        self._at(
            self._now + self._profile.wires.request, lambda: self._take(machine, machine.worker.add(job, self._now))
        )

    # --- workers

    def _take(self, machine: _Machine, happened: list[Happening]) -> None:
        """What happened on a worker, and when its step ends."""
        machine.is_changed = True
        machine.version += 1
        if (due := machine.worker.due) is not None:
            version = machine.version
            self._at(due, lambda: self._step_over(machine, version))
        for happening in happened:
            flight = machine.flights.get(happening.job)
            if flight is None:
                continue
            if isinstance(happening, Started):
                self._started(machine, happening.job, flight)
            elif isinstance(happening, Drew):
                self._drew(machine, happening.job, flight)
            else:
                self._ended(machine, happening.job, flight)

    def _step_over(self, machine: _Machine, version: int) -> None:
        if version == machine.version:
            self._take(machine, machine.worker.finish_step())

    def _started(self, machine: _Machine, job: Job, flight: _Flight) -> None:
        if job.role is Role.DECODE:
            if flight.reserved_at < 0:
                flight.reserved_at = self._now
                self._hand_over(machine, flight)
            return
        if job.starts == 1:
            self.outcomes[job.number].cached = min(job.hits * self._profile.block_size, job.known - 1)
        if job.state is State.FETCHING:
            self._fetch(machine, job, flight)

    def _fetch(self, machine: _Machine, job: Job, flight: _Flight) -> None:
        """Blocks of the prompt from the store that has the most of them, as far as it still has them."""
        size = self._profile.block_size
        store = max(flight.placement.sources, key=lambda source: source.blocks).kvstore
        reusable = job.names[: min(job.fetches, (job.known - 1) // size)]
        found = max(self.stores[store].hits(reusable), job.hits)
        self.outcomes[job.number].cached = min(found * size, job.known - 1)
        volume = (found - job.hits) * size * self._profile.token_bytes
        at = self._network.copied(self._store_machine[store], machine.number, volume, self._now)
        self._at(at, lambda: self._take(machine, machine.worker.landed(job, found * size, self._now)))

    def _drew(self, machine: _Machine, job: Job, flight: _Flight) -> None:
        outcome = self.outcomes[job.number]
        if job.role is Role.DECODE:
            self._note_gap(outcome, self._now + self._profile.wires.token - outcome.first)
            return
        outcome.first = self._now + self._profile.wires.token
        self._dispatcher.first_token(job.number, self._now)

    def _ended(self, machine: _Machine, job: Job, flight: _Flight) -> None:
        del machine.flights[job]
        self._dispatcher.left(machine.worker.address)
        if job.role is not Role.PREFILL:
            outcome = self.outcomes[job.number]
            steps, long = machine.worker.gaps.counts
            began, long_then = job.pace_at_first
            outcome.gaps += steps - began
            outcome.long_gaps = tuple(
                had + end - then for had, end, then in zip(outcome.long_gaps, long, long_then, strict=True)
            )
            self._complete(job.number)
        elif flight.decode.left == 0:
            self._withdraw(flight)
            self._complete(job.number)
        else:
            self._store(flight)
            flight.computed_at = self._now
            self._hand_over(self.machines[flight.placement.decode], flight)
        self._dispatcher.assign(self._now)

    def _complete(self, number: int) -> None:
        outcome = self.outcomes[number]
        outcome.ended = self._now + self._profile.wires.token
        self._dispatcher.over(number, self._now, outcome.answer)
        self._under_way -= 1

    def _withdraw(self, flight: _Flight) -> None:
        """The first token was the last: decode is not needed."""
        machine = self.machines[flight.placement.decode]
        del machine.flights[flight.decode]
        self._dispatcher.left(machine.worker.address)
        self._take(machine, machine.worker.cancel(flight.decode, self._now))

    # --- hand-over

    def _store(self, flight: _Flight) -> None:
        store = flight.placement.kvstore
        came, went = self.stores[store].put(flight.decode.names)
        self._dispatcher.stored(store, str(self._profile.kv_format), came, went)

    def _hand_over(self, machine: _Machine, flight: _Flight) -> None:
        """Once the prompt is computed and decode has room for it; its blocks were on their way before."""
        prefill, decode = flight.prefill, flight.decode
        if prefill is None or flight.computed_at < 0 or flight.reserved_at < 0:
            return
        tail, known = self._profile.tail_block, decode.known
        handed = known // tail * tail
        size = max(handed - decode.hits * self._profile.block_size, 0) * self._profile.token_bytes
        last = min(prefill.last_chunk * self._profile.token_bytes, size)
        ends = (self._store_machine[flight.placement.kvstore], machine.number)
        since = max(prefill.began, flight.reserved_at)
        there = self._network.handed_over(ends, size, last, (since, flight.computed_at))
        put = last / self._network.rate(self.machines[flight.placement.prefill].number, ends[0])
        at = max(there + put, self._now + self._profile.wires.request)
        self._at(at, lambda: self._take(machine, machine.worker.landed(decode, handed, self._now)))

    def _note_gap(self, outcome: Outcome, seconds: float) -> None:
        outcome.gaps += 1
        outcome.long_gaps = tuple(
            had + (seconds > limit) for had, limit in zip(outcome.long_gaps, self._limits, strict=True)
        )

    # --- time

    def _at(self, time: float, act: Callable[[], None]) -> None:
        self._entries += 1
        heappush(self._heap, (time, self._entries, act))

    def _words(self) -> None:
        """Every worker whose state changed says how it is."""
        for machine in self.machines.values():
            if machine.is_changed:
                machine.is_changed = False
                self._dispatcher.heard(self._status(machine), self._now)
        self._dispatcher.assign(self._now)
        self._at(self._now + WORD_SECONDS, self._words)

    def _status(self, machine: _Machine) -> WorkerStatus:
        worker, model = machine.worker, machine.worker.model
        near = {store for store, at in self._store_machine.items() if at == machine.number}
        return WorkerStatus(
            address=worker.address,
            name=worker.address,
            service=machine.service,
            fingerprint=FINGERPRINT,
            format=str(self._profile.kv_format),
            is_ready=True,
            running=len(worker.rows),
            waiting=len(worker.waiting),
            max_running=model.max_running,
            blocks_total=model.num_blocks,
            blocks_used=worker.blocks.used,
            waiting_tokens=worker.waiting_tokens,
            stores=frozenset(self.stores),
            near_stores=frozenset(near),
            cost=model.cost,
            step_seconds=model.step_seconds,
            block_size=self._profile.block_size,
            context_tokens=worker.context_tokens,
        )
