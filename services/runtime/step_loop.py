"""The worker's loop: plan on the loop thread, execute on the compute thread, apply on the loop thread.

Nothing else touches the batcher, so there are no locks; cancellation lands between steps and health answers during
them. A broken engine ends the loop with EngineFault, and with it the process: a worker that cannot compute must not
look alive.
"""

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

from services.core.batch_events import Event
from services.core.batcher import Batcher
from services.core.errors import EngineFault
from services.core.plan import StepPlan, StepResult
from services.core.reuse import Reuse
from services.pb import operations_pb2
from services.runtime.faults import Faults
from services.runtime.metrics import Metrics

log = logging.getLogger(__name__)

LOOK_UP_SECONDS = 0.25


class Runner(Protocol):
    """What the loop needs of an engine."""

    def execute(self, plan: StepPlan) -> StepResult: ...


class Observer(Protocol):
    """Who is told what happens; called on the loop thread."""

    def planned(self, plan: StepPlan, now: float) -> None:
        """These chunks are about to be computed."""

    def deliver(self, events: list[Event], now: float) -> None:
        """All that one step, or one admission, led to."""


class StepLoop:
    """Runs steps for as long as there is something to compute, and waits to be woken otherwise."""

    def __init__(self, batcher: Batcher, runner: Runner, metrics: Metrics, faults: Faults, *, seam: str) -> None:
        self.batcher = batcher
        self._runner = runner
        self._metrics = metrics
        self._faults = faults
        self._seam = seam
        self._woken = asyncio.Event()
        self.computing: StepPlan | None = None
        """The step that has begun and not ended."""
        self._compute = ThreadPoolExecutor(1, thread_name_prefix="compute")

    def wake(self) -> None:
        """Something changed: there may be something to do."""
        self._woken.set()

    def load(self) -> operations_pb2.Load:
        """How busy the batch is."""
        batcher, cost, work = self.batcher, self.batcher.cost, self.batcher.workload
        total = batcher.limits.num_blocks
        return operations_pb2.Load(
            running=batcher.num_running,
            waiting=batcher.num_waiting,
            blocks_total=total,
            blocks_used=total - batcher.free_blocks - batcher.cached_blocks,
            blocks_cached=batcher.cached_blocks,
            waiting_tokens=work.waiting_tokens,
            max_running=batcher.limits.max_running,
            cost_fixed=cost.fixed,
            cost_per_token=cost.per_token,
            cost_per_token_context=cost.per_token_context,
            cost_per_context=cost.per_context,
            step_seconds=batcher.limits.step_seconds,
            block_size=batcher.limits.block_size,
            context_tokens=work.context_tokens,
            max_context=batcher.limits.max_context,
            own_tokens=work.own_tokens,
        )

    async def run(self, observer: Observer) -> None:
        """For ever, until cancelled. Raises EngineFault if the engine breaks."""
        try:
            while True:
                await self._once(observer)
        finally:
            # A step that is running cannot be stopped; it ends by itself and its result is not wanted.
            self._compute.shutdown(wait=False, cancel_futures=True)

    async def _once(self, observer: Observer) -> None:
        self._woken.clear()
        now = time.monotonic()
        if events := self.batcher.admit(now):
            observer.deliver(events, now)
        plan = self.batcher.plan(now)
        if plan is None:
            # An admission may have changed what can be computed; only a quiet batch is worth waiting on.
            if not events:
                await self._until_woken()
            return
        observer.planned(plan, now)
        self.computing = plan
        result = await self._execute(plan)
        self.computing = None
        now = time.monotonic()
        events = self.batcher.apply(result, now)
        self._count(self.batcher.reuse)
        observer.deliver(events, now)

    def _count(self, reuse: Reuse) -> None:
        for source, tokens in reuse.take_prefix().items():
            self._metrics.count("diptych_prefix_tokens_total", tokens, source=source)
        for reason, tokens in reuse.take_again().items():
            self._metrics.count("diptych_recomputed_tokens_total", tokens, reason=reason)

    async def _until_woken(self) -> None:
        """Looks up now and then while requests wait for a transfer, for their deadlines pass without an event."""
        is_empty = not self.batcher.num_waiting and not self.batcher.num_running
        with suppress(TimeoutError):
            async with asyncio.timeout(None if is_empty else LOOK_UP_SECONDS):
                await self._woken.wait()

    async def _execute(self, plan: StepPlan) -> StepResult:
        await self._faults.wait(self._seam)
        begin = time.monotonic()
        try:
            result = await asyncio.get_running_loop().run_in_executor(self._compute, self._runner.execute, plan)
        except Exception as error:
            log.exception("the engine broke")
            raise EngineFault("the engine broke; this worker stops") from error
        self._metrics.count("diptych_steps_total")
        self._metrics.observe("diptych_step_seconds", time.monotonic() - begin)
        return result
