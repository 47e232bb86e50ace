"""One worker's continuous batch: which requests hold blocks, what each step computes, what came of it.

The cycle is `admit` → `plan` → (the engine executes) → `apply`. One batcher serves prefill and decode workers: there
are no phases, only what is computed against what is known, so chunking, prefix hits, recomputing after a preemption
and prefilling locally are one path. Everything else (`add`, `cancel`, `landed`, …) is legal at any time, also while a
step executes; a request cancelled then keeps its blocks until `apply`.

Must not know: tensors, transfers, clocks, sessions. It is told and it answers with events.
"""

from services.core.batch_events import Emitted, Event, Failed, Finished, Preempted
from services.core.batch_limits import BatchLimits
from services.core.blocks import Chain, root
from services.core.composition import compose
from services.core.errors import DeadlinePassed, DiptychError, InternalError, InvalidRequest, Overloaded
from services.core.ids import BlockId, RequestKey
from services.core.pace import Pace
from services.core.plan import Chunk, Drawn, StepPlan, StepResult
from services.core.prefix_fetch import NOTHING_KNOWN, KnownPrefix
from services.core.progress import Holding, Progress, State
from services.core.request import FinishReason, Request, Role
from services.core.reuse import Reuse
from services.core.running import Running
from services.core.step_cost import StepCost
from services.core.waiting import Waiting
from services.core.workload import Workload


class Batcher:
    """Single-threaded and pure; `now` is in seconds on one monotonic clock.

    `copied` are the roles whose sealed blocks somebody copies out: they are pinned until `unpin`.
    """

    def __init__(
        self, limits: BatchLimits, fingerprint: bytes, copied: frozenset[Role] = frozenset({Role.PREFILL})
    ) -> None:
        self._limits = limits
        self._fingerprint = fingerprint
        self._running = Running(limits, copied)
        self._pace = Pace(limits.cost)
        self._requests: dict[RequestKey, Progress] = {}
        self._waiting = Waiting()
        self._leaving: dict[RequestKey, Progress] = {}
        """Gone, but a step or a transfer still uses their blocks."""
        self._step: list[tuple[Progress, Chunk]] = []
        """What the engine executes now."""
        self._arrivals = 0

    # --- requests come and go

    def add(self, request: Request, now: float, prefix: KnownPrefix = NOTHING_KNOWN) -> None:
        """Queue a request, or raise InvalidRequest, ContextTooLong, NeverFits or Overloaded and change nothing.

        `prefix`: what a store claims to hold of it, and what fetching costs; if it is got, `Reserved` says so.
        """
        if request.key in self._requests or request.key in self._leaving:
            raise InvalidRequest("this attempt at the request is already here", field="request_id")
        self._limits.check(request)
        if len(self._waiting) >= (self._limits.max_waiting or self._limits.max_running - len(self._running)):
            raise Overloaded("the worker's queue is full")
        chain = Chain(root(self._fingerprint, request.salt), self._limits.block_size, request.tokens)
        rank = (now - request.priority * self._limits.head_start, self._arrivals)
        progress = Progress(request, rank, chain, now, prefix)
        self._arrivals += 1
        self._requests[request.key] = progress
        self._waiting.add(progress)

    def cancel(self, key: RequestKey) -> bool:
        """Drop a request without an event; False if it is not (or no longer) here."""
        progress = self._requests.get(key)
        if progress is not None:
            self._drop(progress)
        return progress is not None

    # --- the cycle

    def admit(self, now: float) -> list[Event]:
        """Between steps: fail what is past its deadline, give running requests room to grow, start waiting ones.

        The first in the queue starts once there are blocks for all its known tokens and the watermark, and no prompt
        is being computed whose blocks it will find; until then nothing behind it does. Both growth and start may
        preempt who is behind in rank.
        """
        self._require_no_step()
        events = self._expire(now)
        events += self._running.announce()
        events += self._queue_again(self._running.grow(now))
        cost = self._pace.cost
        while (first := self._waiting.first) and not self._running.is_computing_for(first):
            if not (started := self._running.start(first, now, cost)):
                break
            self._waiting.remove(first)
            events += self._queue_again(started)
        return events

    def plan(self, now: float) -> StepPlan | None:
        """The next step, or None if nothing can be computed; a step is applied before the next `admit` or `plan`."""
        self._require_no_step()
        chunks = compose(self._running.computable(), self._limits, self._pace.cost)
        self._step = [(self._requests[chunk.key], chunk) for chunk in chunks]
        for progress, _ in self._step:
            progress.moved = now
        return StepPlan(chunks) if chunks else None

    def apply(self, result: StepResult, now: float) -> list[Event]:
        """What the planned step led to; what was cancelled meanwhile is released without an event."""
        if not self._step:
            raise RuntimeError("apply() needs a planned step")
        step, self._step = self._step, []
        self._pace.note(StepPlan(tuple(chunk for _, chunk in step)), result.seconds)
        events: list[Event] = []
        for progress, chunk in step:
            progress.moved = now
            if progress.state is State.LEAVING:
                self._running.release(progress)
                del self._leaving[progress.key]
            else:
                events += self._advance(progress, chunk, result)
        return events

    # --- the decode side of a hand-over

    def landed(self, key: RequestKey, index: int) -> None:
        """Block `index` of `Reserved.fetch` is filled and verified; nothing if that is no longer awaited."""
        if self._running.fetching.end(key, index) is None:
            return
        if key in self._requests:
            self._running.land(self._requests[key], index)
        self._after_fetch(key)

    def no_more(self, key: RequestKey) -> None:
        """No copy for this request runs or will: compute here what has not landed. Also for a request that is gone."""
        self._running.fetching.end_all(key)
        if key in self._requests:
            self._requests[key].wants_fetch = False
        self._after_fetch(key)

    def computed(self, key: RequestKey) -> int:
        """Positions of a request whose KV is here, from the first one on; 0 if it is gone."""
        return self._requests[key].computed if key in self._requests else 0

    def first_token(self, key: RequestKey, token: int) -> None:
        """Prefill drew the first token; nothing if that is not awaited. One that ends the answer starts nothing."""
        progress = self._requests.get(key)
        if progress is not None and progress.awaits_first:
            progress.chain.append(token)
            progress.awaits_first = False
            self._running.settle(progress)

    def unpin(self, block: BlockId) -> None:
        """One copy out of this block, or into it without filling it, returned."""
        awaited = self._running.fetching.find(block)
        if awaited is None:
            self._running.pool.unpin(block)
            return
        self._running.fetching.end(*awaited)
        self._after_fetch(awaited[0])

    # --- views

    @property
    def limits(self) -> BatchLimits:
        return self._limits

    @property
    def workload(self) -> Workload:
        """What is still to be computed and what is held, in tokens."""
        return Workload.of(self._requests.values())

    @property
    def reuse(self) -> Reuse:
        """Where the KV of requests came from, to be counted."""
        return self._running.reuse

    @property
    def cost(self) -> StepCost:
        """Of a step, as steps go now."""
        return self._pace.cost

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests that hold blocks, those still being fetched included."""
        return len(self._running)

    @property
    def free_blocks(self) -> int:
        """Blocks without content."""
        return self._running.pool.num_free

    @property
    def cached_blocks(self) -> int:
        """Blocks kept for a hit that nobody uses; a new request may take them."""
        return self._running.pool.num_cached

    @property
    def pinned_blocks(self) -> int:
        """Blocks that transfers read or fill."""
        return self._running.pool.num_pinned

    def holdings(self, now: float) -> list[Holding]:
        """Every request here, and every one gone whose blocks a step or a fetch still uses."""
        return [
            Holding(p.key, p.state, self._running.blocks_of(p), now - p.added, now - p.moved)
            for p in (*self._requests.values(), *self._leaving.values())
        ]

    def check_invariants(self) -> None:
        """AssertionError if the books do not balance."""
        self._waiting.check_invariants()
        self._running.check_invariants(list(self._leaving.values()))
        assert len(self._requests) == len(self._waiting) + len(self._running), "a request is in no list, or in two"
        assert len(self._running) <= self._limits.max_running, "too many running"
        assert len(self._waiting) <= self._limits.max_waiting + self._limits.max_running, "too many waiting"
        executing = {progress.key for progress, _ in self._step}
        for key, progress in self._leaving.items():
            assert key in executing or self._running.fetching.is_open(key), "a request is gone but not let go"
            assert progress.state is State.LEAVING and key not in self._requests, "a request is gone and here"

    # --- private

    def _advance(self, progress: Progress, chunk: Chunk, result: StepResult) -> list[Event]:
        drawn = result.drawn.get(progress.key)
        if progress.key in result.failed or (chunk.draw is not None and drawn is None):
            self._running.distrust(progress)
            reason = result.failed.get(progress.key, "the engine drew no token")
            return [self._fail(progress, InternalError(reason))]
        events = self._running.advance(progress, len(chunk.tokens))
        if chunk.draw is not None and drawn is not None:
            events += self._emit(progress, drawn)
        return events

    def _emit(self, progress: Progress, drawn: Drawn) -> list[Event]:
        progress.chain.append(drawn.token)
        if progress.answered == len(progress.request.emitted) + 1:
            self._running.reuse.prompt_done(progress)
        events: list[Event] = [Emitted(progress.key, progress.answered - 1, drawn.token, drawn.logprobs)]
        reason = self._limits.ending(progress.request, progress.answered, drawn.token)
        if reason is None and progress.request.role is Role.PREFILL:
            reason = FinishReason.HANDED_OVER
        if reason is not None:
            self._drop(progress)
            events.append(Finished(progress.key, reason))
        return events

    def _expire(self, now: float) -> list[Event]:
        late = [p for p in self._requests.values() if p.request.deadline is not None and p.request.deadline <= now]
        return [self._fail(p, DeadlinePassed("the deadline passed before the answer was complete")) for p in late]

    def _fail(self, progress: Progress, error: DiptychError) -> Failed:
        self._drop(progress)
        return Failed(progress.key, error)

    def _drop(self, progress: Progress) -> None:
        """Forget a request in any state; what a step or a fetch still uses is let go when that is over."""
        del self._requests[progress.key]
        if progress.state is State.WAITING:
            self._waiting.remove(progress)
            return
        self._running.remove(progress)
        is_executing = any(progress is executing for executing, _ in self._step)
        if not is_executing:
            self._running.release(progress)
        if is_executing or self._running.fetching.is_open(progress.key):
            progress.state = State.LEAVING
            self._leaving[progress.key] = progress

    def _after_fetch(self, key: RequestKey) -> None:
        """A request goes on, or is gone for good, once nothing is copied into its blocks."""
        if self._running.fetching.is_open(key):
            return
        if key in self._requests:
            self._running.settle(self._requests[key])
        elif key in self._leaving and not self._leaving[key].blocks:
            del self._leaving[key]

    def _queue_again(self, events: list[Event]) -> list[Event]:
        """Whoever was preempted waits again; the events go on."""
        for event in events:
            if isinstance(event, Preempted):
                self._waiting.add(self._requests[event.key])
        return events

    def _require_no_step(self) -> None:
        if self._step:
            raise RuntimeError("a planned step is not applied yet")
