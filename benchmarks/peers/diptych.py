"""Our engine as a contender: the worker's own step loop, batcher and engine, with the worker's default settings.

Requests are added to the batcher as a session adds them; nothing of the network is here. The loop lives as long as
the contender and waits, without turning, between runs.
"""

import asyncio
import time
from pathlib import Path
from statistics import median

import uvloop

from peers.channel import Job, Json, serve
from peers.our_model import GREEDY, logits_of_texts, profile_of, step_bytes
from peers.step_clock import StepClock, Turn, fullest_decodes
from peers.step_profile import shares_of_step
from peers.trace import Trace
from peers.workloads import W1, Workload
from services.core.batch_events import Emitted, Event, Failed, Finished
from services.core.batcher import Batcher
from services.core.ids import RequestId, RequestKey
from services.core.plan import StepPlan
from services.core.request import Request, Stopping
from services.decode.settings import Settings
from services.engine.load import load_engine
from services.engine.warm_up import warm_up
from services.modelfiles.prepared import PreparedModel
from services.runtime.faults import Faults
from services.runtime.metrics import Metrics
from services.runtime.step_loop import StepLoop

PROFILED = Workload("profile", W1.requests, 64, 64, "decode steps at batch 16")
"""What the profile and the share of bookkeeping are taken of: the steps in which all of it, or the most that ever did,
decode together."""


class Watch:
    """Sees the loop's events; one run at a time."""

    def __init__(self) -> None:
        self._times: dict[RequestKey, list[float]] = {}
        self._tokens: dict[RequestKey, list[int]] = {}
        self._open: set[RequestKey] = set()
        self._done = asyncio.Event()

    def planned(self, plan: StepPlan, now: float) -> None:
        """Of no interest here."""

    def deliver(self, events: list[Event], now: float) -> None:
        for event in events:
            match event:
                case Emitted():
                    self._times[event.key].append(now)
                    self._tokens[event.key].append(event.token)
                case Finished():
                    self._open.discard(event.key)
                case Failed():
                    raise event.error
        if not self._open:
            self._done.set()

    async def trace(self, requests: list[Request], began: float) -> Trace:
        """Returns when all requests are finished."""
        keys = [request.key for request in requests]
        self._times = {key: [] for key in keys}
        self._tokens = {key: [] for key in keys}
        self._open = set(keys)
        self._done.clear()
        await self._done.wait()
        return Trace(
            prompt_tokens=len(requests[0].prompt),
            times=tuple(tuple(at - began for at in self._times[key]) for key in keys),
            tokens=tuple(tuple(self._tokens[key]) for key in keys),
        )


class Diptych:
    """Options: `model` (a prepared directory), `threads`."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._asyncio = runner
        self._count = 0

    def load(self, options: Json) -> Json:
        prepared = PreparedModel.open(Path(options["model"]))
        self._threads = int(options["threads"])
        settings = Settings(model=prepared.directory, threads=self._threads)
        self._engine = load_engine(prepared, settings.of_engine)
        # The default is for a worker beside others; all of W1 is to be in one batch.
        settings = settings.model_copy(update={"max_running": max(settings.max_running, W1.requests)})
        cost = warm_up(self._engine.runner, self._engine.config.context)
        self._clock = StepClock(self._engine.runner)
        self._watch = Watch()
        batcher = Batcher(settings.limits(self._engine.config, cost), self._engine.fingerprint)
        self._loop = StepLoop(batcher, self._clock, Metrics("decode"), Faults({}), seam="decode.step")
        self._asyncio.run(self._begin())
        chosen = ("threads", "weights", "kv_dtype", "num_blocks", "block_size", "max_running", "step_seconds")
        return {
            **{name: getattr(settings, name) for name in chosen},
            "engine": type(self._engine.runner).__name__,
            "kv": str(self._engine.format),
            "weight_bytes": step_bytes(self._engine, prepared, settings.weights),
        }

    def run(self, job: Job) -> Trace:
        return self._asyncio.run(self._run(job))

    def logits(self, texts: list[list[int]], path: Path) -> None:
        logits_of_texts(self._engine, texts, path)

    def extras(self) -> Json:
        """Where a decode step's time goes, and the share of it that is not tensor work."""
        turns, busy = self._decode_steps(repetition=0)
        self._clock.profile = profile_of(self._engine)
        self._clock.profiled_rows = turns[0].rows
        self._decode_steps(repetition=1)
        outside = median(turn.outside for turn in turns)
        shares = shares_of_step(self._clock.profile.seconds(), outside)
        self._clock.profile = None
        whole = median(turn.seconds for turn in turns)
        return {
            "bookkeeping_share": shares["bookkeeping"],
            "profile": {"step_seconds": whole, "rows": turns[0].rows, **shares, "idle": 1 - busy},
        }

    def _decode_steps(self, repetition: int) -> tuple[list[Turn], float]:
        """The fullest decode steps of `PROFILED`, and how busy the compute threads are in its run, as a share."""
        self._clock.steps.clear()
        began, used = time.monotonic(), time.process_time()
        self.run(Job(PROFILED, PROFILED.prompts(self._engine.config.vocab, repetition)))
        busy = (time.process_time() - used) / (time.monotonic() - began) / self._threads
        return fullest_decodes(self._clock.steps), min(busy, 1.0)

    async def _begin(self) -> None:
        self._turning = asyncio.create_task(self._loop.run(self._watch))

    async def _run(self, job: Job) -> Trace:
        began = time.monotonic()
        requests = [self._request(prompt, job.workload.answer_tokens) for prompt in job.prompts]
        for request in requests:
            self._loop.batcher.add(request, began)
        self._loop.wake()
        answered = asyncio.create_task(self._watch.trace(requests, began))
        await asyncio.wait({answered, self._turning}, return_when=asyncio.FIRST_COMPLETED)
        if not answered.done():
            answered.cancel()
            self._turning.result()
        return answered.result()

    def _request(self, prompt: list[int], answer_tokens: int) -> Request:
        self._count += 1
        key = RequestKey(RequestId(f"request-{self._count}"))
        return Request(key, tuple(prompt), GREEDY, Stopping(max_tokens=answer_tokens))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as asyncio_runner:
        serve(Diptych(asyncio_runner))
