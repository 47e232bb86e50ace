"""One worker's continuous batch on virtual time: the rules of `core/batcher.py`, on counts.

Steps of decode rows alone are advanced as one run, since nothing changes in them but contexts: step `j` of a run takes
`first + j · growth`. A run ends with its first row, or at the end of the step during which something else happens. What
it leaves out of the real batch: preemption for a start, deadlines, and cached blocks of answers.
"""

import math
from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from services.core.composition import compose
from services.core.progress import Progress
from services.simulation.block_cache import WorkerBlocks
from services.simulation.gaps import Gaps
from services.simulation.job import Job, Piece, State
from services.simulation.profile import WorkerModel


class Started(NamedTuple):
    """It holds blocks; one in state FETCHING goes on when `SimulatedWorker.landed` is called."""

    job: Job


class Drew(NamedTuple):
    """Its first token here."""

    job: Job


class Ended(NamedTuple):
    """Its last token; its blocks are free."""

    job: Job


Happening = Started | Drew | Ended


@dataclass(slots=True)
class _Step:
    began: float
    rows: list[Job]
    """Those that draw one token a step."""
    chunks: list[tuple[Job, int]]
    first: float
    growth: float
    count: int

    def lasts(self, count: int) -> float:
        return count * self.first + self.growth * count * (count - 1) / 2

    def reached(self, seconds: float) -> int:
        """Fewest steps, at least 1, that last so long."""
        if self.growth <= 0:
            count = math.ceil(seconds / self.first - 1e-9)
        else:
            half = self.first / self.growth - 0.5
            count = math.ceil(math.sqrt(half * half + 2 * max(seconds, 0.0) / self.growth) - half - 1e-9)
        return min(max(count, 1), self.count)


class SimulatedWorker:
    """`add` and `landed` at any time; `finish_step` when `due` has come. Both may give happenings of that moment."""

    def __init__(self, address: str, model: WorkerModel, block_size: int, limits: tuple[float, ...] = ()) -> None:
        self.address = address
        self.model = model
        self.blocks = WorkerBlocks(model.num_blocks)
        self.gaps = Gaps(limits)
        self.waiting: deque[Job] = deque()
        self.rows: list[Job] = []
        """Those that hold blocks, by rank."""
        self.busy_seconds = 0.0
        self.longest_run = 1 << 30
        """Steps that may be advanced at once."""
        self._block_size = block_size
        self._limits = model.limits(block_size)
        self._step: _Step | None = None
        self._arrivals = 0

    @property
    def due(self) -> float | None:
        """When the step or run ends; None while idle."""
        step = self._step
        return step.began + step.lasts(step.count) if step else None

    @property
    def waiting_tokens(self) -> int:
        """As the real batch counts them."""
        return sum(job.remaining for jobs in (self.waiting, self.rows) for job in jobs if job.remaining > 1)

    @property
    def context_tokens(self) -> int:
        return sum(job.known for job in self.rows)

    def add(self, job: Job, now: float) -> list[Happening]:
        """A request comes; its rank is that of its arrival."""
        self._arrivals += 1
        job.rank = self._arrivals
        self.waiting.append(job)
        return self._stirred(now)

    def landed(self, job: Job, computed: int, now: float) -> list[Happening]:
        """Its first `computed` tokens are in its blocks, and its first token is here if that was drawn elsewhere."""
        if job.awaits_first:
            job.awaits_first = False
            job.known += 1
        self._seal(job, job.computed, computed)
        job.computed = max(job.computed, computed)
        job.state = State.RUNNING
        return self._stirred(now)

    def cancel(self, job: Job, now: float) -> list[Happening]:
        """It leaves without having computed anything."""
        if job.state is State.WAITING:
            self.waiting.remove(job)
        else:
            self._release(job)
        job.state = State.OVER
        return self._stirred(now)

    def finish_step(self) -> list[Happening]:
        """What came of the step that is due, and what started after it."""
        step, self._step = self._step, None
        assert step is not None, "no step is due"
        now = step.began + step.lasts(step.count)
        self.busy_seconds += now - step.began
        happened: list[Happening] = []
        for job in step.rows:
            # What they grew into during the run, before any of them lets go of its own.
            self._hold(job, self._needed(job.known + step.count - 1) - job.blocks)
        for job in step.rows:
            self._seal(job, job.computed, job.computed + step.count)
            job.computed += step.count
            self._draw(job, step.count, now, happened)
        for job, tokens in step.chunks:
            self._seal(job, job.computed, job.computed + tokens)
            job.computed += tokens
            job.last_chunk = tokens
            if job.computed == job.known:
                self._draw(job, 1, now, happened)
        if step.rows:
            self.gaps.note(step.first, step.growth, step.count, len(step.rows))
        for happening in happened:
            # The counts after this step: gaps are those of the steps that follow.
            if isinstance(happening, Drew):
                happening.job.pace_at_first = self.gaps.counts
        return happened + self._plan(now)

    def check_invariants(self) -> None:
        """AssertionError if the books do not balance."""
        self.blocks.check_invariants()
        assert len(self.rows) <= self.model.max_running, "too many running"
        held = {name for job in self.rows for name in job.held}
        assert sum(job.unnamed for job in self.rows) + len(held) == self.blocks.used, "a block is held by nobody"

    # --- private

    def _stirred(self, now: float) -> list[Happening]:
        """Something may change: at once if idle, else after the step that executes."""
        if self._step is None:
            return self._plan(now)
        if self._step.count > 1:
            self._step.count = self._step.reached(now - self._step.began)
        return []

    def _draw(self, job: Job, tokens: int, now: float, happened: list[Happening]) -> None:
        if not job.drawn:
            job.first_at = now
            happened.append(Drew(job))
        job.drawn += tokens
        job.known += tokens
        job.left -= tokens
        if not job.left:
            self._release(job)
            job.state = State.OVER
            happened.append(Ended(job))

    def _plan(self, now: float) -> list[Happening]:
        lacking = self._grow()
        started = self._admit(now)
        rows, chunks = self._composed(lacking)
        if rows or chunks:
            self._step = self._stepped(rows, chunks, now)
        return started

    def _grow(self) -> set[Job]:
        """Blocks for all known tokens, at the cost of those last in rank; who gets none is left out of the step."""
        lacking: set[Job] = set()
        for job in tuple(self.rows):
            if job.state is not State.RUNNING or (count := self._needed(job.known) - job.blocks) <= 0:
                continue
            while not self.blocks.fits((), count) and (victim := self._behind(job)) is not None:
                self._preempt(victim)
            if self.blocks.fits((), count):
                self._hold(job, count)
            else:
                lacking.add(job)
        return lacking

    def _behind(self, job: Job) -> Job | None:
        running = (row for row in reversed(self.rows) if row.rank > job.rank and row.state is State.RUNNING)
        return next(running, None)

    def _preempt(self, job: Job) -> None:
        self._release(job)
        job.state = State.WAITING
        job.fetches = job.computed = 0
        place = next((at for at, other in enumerate(self.waiting) if other.rank > job.rank), len(self.waiting))
        self.waiting.insert(place, job)

    def _admit(self, now: float) -> list[Happening]:
        started: list[Happening] = []
        while self.waiting and len(self.rows) < self.model.max_running and self._start(self.waiting[0]):
            job = self.waiting.popleft()
            insort(self.rows, job, key=lambda row: row.rank)
            is_fetching = job.awaits_first or job.fetches > job.hits
            job.state = State.FETCHING if is_fetching else State.RUNNING
            job.began = now
            job.starts += 1
            started.append(Started(job))
        return started

    def _start(self, job: Job) -> bool:
        reusable = job.names[: (job.known - 1) // self._block_size]
        hits = self.blocks.hits(reusable)
        prefix, count = reusable[:hits], self._needed(job.known) - hits
        if not self.blocks.fits(prefix, count, self.model.watermark_blocks if self.rows else 0):
            return False
        self.blocks.take(prefix, count)
        job.held, job.unnamed, job.computed = list(prefix), count, hits * self._block_size
        if not job.starts:
            job.hits = hits
        return True

    def _composed(self, lacking: set[Job]) -> tuple[list[Job], list[tuple[Job, int]]]:
        """Decode rows, and chunks of prompts: the worker's own rule, which looks at nothing that a job has not."""
        running = [job for job in self.rows if job.state is State.RUNNING and job not in lacking]
        rows = [job for job in running if job.remaining == 1]
        if len(rows) == len(running):
            return rows, []
        pieces = compose(cast("Sequence[Progress]", running), self._limits, self.model.cost)
        chunks = [(piece.job, piece.length) for piece in cast("Sequence[Piece]", pieces)]
        return rows, [(job, length) for job, length in chunks if job.remaining > 1]

    def _seconds(self, rows: list[Job]) -> float:
        cost = self.model.cost
        contexts = sum(job.known for job in rows)
        return cost.fixed + len(rows) * cost.per_token + (cost.per_token_context + cost.per_context) * contexts

    def _stepped(self, rows: list[Job], chunks: list[tuple[Job, int]], now: float) -> _Step:
        cost = self.model.cost
        first = self._seconds(rows) + sum(cost.chunk(tokens, job.computed) for job, tokens in chunks)
        if chunks:
            return _Step(now, rows, chunks, first, 0.0, 1)
        growth = len(rows) * (cost.per_token_context + cost.per_context)
        return _Step(now, rows, chunks, first, growth, self._run_of(rows))

    def _run_of(self, rows: list[Job]) -> int:
        """Steps until a row ends, as long as all have blocks for them; a first token has a step of its own."""
        if not all(job.drawn for job in rows):
            return 1
        count = min(min(job.left for job in rows), self.longest_run)
        if sum(self._needed(job.known + count - 1) - job.blocks for job in rows) > self.blocks.free:
            return 1
        return count

    def _needed(self, tokens: int) -> int:
        return -(-tokens // self._block_size)

    def _hold(self, job: Job, count: int) -> None:
        """So many more blocks; there is room for them."""
        if count > 0:
            self.blocks.take((), count)
            job.unnamed += count

    def _seal(self, job: Job, before: int, after: int) -> None:
        for place in range(before // self._block_size, min(after // self._block_size, len(job.names))):
            if self.blocks.seal(job.names[place]):
                job.held.append(job.names[place])
                job.unnamed -= 1

    def _release(self, job: Job) -> None:
        self.rows.remove(job)
        self.blocks.release(job.held, job.unnamed)
        job.held, job.unnamed = [], 0
