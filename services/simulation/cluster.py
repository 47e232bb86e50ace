"""A trace through a cluster on virtual time: what happens when, and who is told.

One clock, one heap of times. The first machines have a prefill worker and a store near it each, the others a decode
worker; in a cluster without a split every machine has a worker that does both. Times of messages are constants of the
profile.
"""

from dataclasses import dataclass
from functools import partial

from services.core.request import Role
from services.scheduler.policies import Place
from services.scheduler.story import Placement
from services.simulation.block_cache import StoreBlocks
from services.simulation.dispatcher import Dispatcher
from services.simulation.job import Job, State
from services.simulation.machine import Flight, Machine
from services.simulation.names import names_of
from services.simulation.network import Network
from services.simulation.outcome import Outcome
from services.simulation.profile import Profile
from services.simulation.timeline import Timeline
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


class Cluster:
    """Runs once."""

    def __init__(self, profile: Profile, pools: Pools, place: Place, trace: Trace, limits: tuple[float, ...]) -> None:
        self._profile = profile
        self._trace = trace
        self._time = Timeline()
        self._under_way = 0
        """Requests that have come, or will."""
        self._limits = limits
        self.outcomes = [Outcome(row.at, row.prompt, row.answer, long_gaps=(0,) * len(limits)) for row in trace]
        self._dispatcher = Dispatcher(place, self._begin)
        self._network = Network(profile.wires, pools.machines)
        kinds = (
            [("prefill", "prefill", profile.prefill)] * pools.prefill
            + [("decode", "decode", profile.decode)] * pools.decode
            + [("whole", "decode", profile.whole)] * pools.whole
        )
        self.machines: dict[str, Machine] = {}
        for number, (kind, service, model) in enumerate(kinds):
            worker = SimulatedWorker(f"{kind}-{number:04d}", model, profile.block_size, limits)
            self.machines[worker.address] = Machine(worker, number, service)
        count = min(pools.prefill, MOST_STORES)
        self._store_machine = {f"store-{each:04d}": each for each in range(count)}
        self.stores = {store: StoreBlocks(profile.store_blocks) for store in self._store_machine}
        for machine, store in zip(self.machines.values(), self.stores, strict=False):
            machine.near = frozenset({store})

    def run(self) -> None:
        """Until the last answer is complete."""
        self._under_way = len(self._trace)
        self._time.at(0.0, self._words)
        for number, row in enumerate(self._trace):
            self._time.at(row.at, partial(self._arrive, number))
        while self._under_way and self._time.advance():
            pass

    @property
    def now(self) -> float:
        return self._time.now

    # --- requests

    def _arrive(self, number: int) -> None:
        row = self._trace[number]
        names = names_of(row, number, self._profile.block_size)
        self._dispatcher.arrived(number, (row.prompt, row.answer), names, self._time.now)
        self._dispatcher.assign(self._time.now)

    def _begin(self, number: int, placement: Placement) -> None:
        row, outcome = self._trace[number], self.outcomes[number]
        outcome.placed, outcome.is_split = self._time.now, placement.is_split
        names = names_of(row, number, self._profile.block_size)
        fetches = max((source.blocks for source in placement.sources), default=0)
        if not placement.is_split:
            whole = Job(number, Role.WHOLE, row.prompt, row.answer, names, fetches)
            self._send(placement.decode, whole, Flight(placement, whole))
            return
        decode = Job(number, Role.DECODE, row.prompt, row.answer - 1, names, awaits_first=True)
        prefill = Job(number, Role.PREFILL, row.prompt, 1, names, fetches)
        flight = Flight(placement, decode, prefill)
        self._send(placement.decode, decode, flight)
        self._send(placement.prefill, prefill, flight)

    def _send(self, address: str, job: Job, flight: Flight) -> None:
        machine = self.machines[address]
        machine.flights[job] = flight
        due = self._time.now + self._profile.wires.request
        self._time.at(due, lambda: self._take(machine, machine.worker.add(job, self._time.now)))

    # --- workers

    def _take(self, machine: Machine, happened: list[Happening]) -> None:
        """What happened on a worker, and when its step ends."""
        machine.is_changed = True
        machine.version += 1
        if (due := machine.worker.due) is not None:
            version = machine.version
            self._time.at(due, lambda: self._step_over(machine, version))
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

    def _step_over(self, machine: Machine, version: int) -> None:
        if version == machine.version:
            self._take(machine, machine.worker.finish_step())

    def _started(self, machine: Machine, job: Job, flight: Flight) -> None:
        if job.role is Role.DECODE:
            if flight.reserved_at < 0:
                flight.reserved_at = self._time.now
                self._hand_over(machine, flight)
            return
        if job.starts == 1:
            self.outcomes[job.number].cached = min(job.hits * self._profile.block_size, job.known - 1)
        if job.state is State.FETCHING:
            self._fetch(machine, job, flight)

    def _fetch(self, machine: Machine, job: Job, flight: Flight) -> None:
        """Blocks of the prompt from the store that has the most of them, as far as it still has them."""
        size = self._profile.block_size
        store = max(flight.placement.sources, key=lambda source: source.blocks).kvstore
        reusable = job.names[: min(job.fetches, (job.known - 1) // size)]
        found = max(self.stores[store].hits(reusable), job.hits)
        self.outcomes[job.number].cached = min(found * size, job.known - 1)
        volume = (found - job.hits) * size * self._profile.token_bytes
        at = self._network.copied(self._store_machine[store], machine.number, volume, self._time.now)
        self._time.at(at, lambda: self._take(machine, machine.worker.landed(job, found * size, self._time.now)))

    def _drew(self, machine: Machine, job: Job, flight: Flight) -> None:
        outcome = self.outcomes[job.number]
        if job.role is Role.DECODE:
            self._note_gap(outcome, self._time.now + self._profile.wires.token - outcome.first)
            return
        outcome.first = self._time.now + self._profile.wires.token
        self._dispatcher.first_token(job.number, self._time.now)

    def _ended(self, machine: Machine, job: Job, flight: Flight) -> None:
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
            flight.computed_at = self._time.now
            self._hand_over(self.machines[flight.placement.decode], flight)
        self._dispatcher.assign(self._time.now)

    def _complete(self, number: int) -> None:
        outcome = self.outcomes[number]
        outcome.ended = self._time.now + self._profile.wires.token
        self._dispatcher.over(number, self._time.now, outcome.answer)
        self._under_way -= 1

    def _withdraw(self, flight: Flight) -> None:
        """The first token was the last: decode is not needed."""
        machine = self.machines[flight.placement.decode]
        del machine.flights[flight.decode]
        self._dispatcher.left(machine.worker.address)
        self._take(machine, machine.worker.cancel(flight.decode, self._time.now))

    # --- hand-over

    def _store(self, flight: Flight) -> None:
        store = flight.placement.kvstore
        came, went = self.stores[store].put(flight.decode.names)
        self._dispatcher.stored(store, str(self._profile.kv_format), came, went)

    def _hand_over(self, machine: Machine, flight: Flight) -> None:
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
        at = max(there + put, self._time.now + self._profile.wires.request)
        self._time.at(at, lambda: self._take(machine, machine.worker.landed(decode, handed, self._time.now)))

    def _note_gap(self, outcome: Outcome, seconds: float) -> None:
        outcome.gaps += 1
        outcome.long_gaps = tuple(
            had + (seconds > limit) for had, limit in zip(outcome.long_gaps, self._limits, strict=True)
        )

    # --- words

    def _words(self) -> None:
        """Every worker whose state changed says how it is."""
        stores = frozenset(self.stores)
        for machine in self.machines.values():
            if machine.is_changed:
                machine.is_changed = False
                self._dispatcher.heard(machine.status(self._profile, stores), self._time.now)
        self._dispatcher.assign(self._time.now)
        self._time.at(self._time.now + WORD_SECONDS, self._words)
