"""Compiled engines of tiny models, and requests driven through a real batcher on them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from services.core.batch_events import Emitted, Finished, Preempted
from services.core.batch_limits import BatchLimits
from services.core.batcher import Batcher
from services.core.engine_settings import EngineSettings
from services.core.ids import BlockId, RequestId, RequestKey
from services.core.model_config import KVFormat
from services.core.plan import Chunk, Draw, StepPlan, StepResult
from services.core.request import Request, Sampling, Stopping
from services.core.step_cost import StepCost
from services.engine.compiled.load import load_runner
from services.engine.compiled.runner import CompiledRunner
from services.modelfiles.prepare import prepare
from services.modelfiles.prepared import PreparedModel
from tests.support.tiny_model import write_tiny_hf_model

Logits = npt.NDArray[np.float32]
GREEDY = Draw(Sampling(temperature=0.0), position=0)


def tiny_prepared(directory: Path, **settings: object) -> PreparedModel:
    source = write_tiny_hf_model(directory / "source", **settings)  # type: ignore[arg-type]
    return PreparedModel.open(prepare(source, directory / "cache"))


def engine(prepared: PreparedModel, **choices: object) -> CompiledRunner:
    settings = EngineSettings(**{"num_blocks": 64, "kv_dtype": "float32", "weights": "float32", **choices})  # type: ignore[arg-type]
    config = prepared.config
    kv = KVFormat(settings.kv_dtype, settings.block_size, config.layers, config.kv_heads, config.head_dim)
    return load_runner(prepared, kv, settings)


def chunk(name: str, tokens: Sequence[int], start: int, blocks: Sequence[int], draw: Draw | None = GREEDY) -> Chunk:
    return Chunk(RequestKey(RequestId(name)), tuple(tokens), start, tuple(map(BlockId, blocks)), draw)


@dataclass
class Recorder:
    """A runner that keeps the logits of every draw, by request and position."""

    runner: CompiledRunner
    logits: dict[tuple[str, int], Logits] = field(default_factory=dict)

    def execute(self, plan: StepPlan) -> StepResult:
        result = self.runner.execute(plan)
        drawing = [chunk for chunk in plan.chunks if chunk.draw is not None]
        # The engine computes the same once more: what it wrote is what it writes again.
        for one, row in zip(drawing, self.runner.logits(plan.chunks), strict=True):
            self.logits[one.key.request_id, one.start + len(one.tokens)] = row.copy()
        return result


@dataclass(frozen=True)
class Answered:
    tokens: dict[str, list[int]]
    logits: dict[tuple[str, int], Logits]
    preemptions: int


def limits(**changes: object) -> BatchLimits:
    usual = {
        "block_size": 16,
        "num_blocks": 64,
        "max_running": 8,
        "max_waiting": 64,
        "max_context": 512,
        "step_seconds": 64.0,
        "cost": StepCost(0.0, 1.0, 0.0),
        "watermark_blocks": 0,
        "vocab": 320,
    }
    return BatchLimits(**{**usual, **changes})  # type: ignore[arg-type]


def request(
    name: str, prompt: Sequence[int], tokens: int, sampling: Sampling | None = None, priority: int = 0
) -> Request:
    return Request(
        RequestKey(RequestId(name)),
        tuple(prompt),
        sampling or Sampling(temperature=0.0),
        Stopping(tokens),
        priority=priority,
    )


def answer(
    runner: CompiledRunner, batch: BatchLimits, arrivals: Callable[[int], Sequence[Request]], steps: int = 2000
) -> Answered:
    """Runs until all that arrive (asked for before each step, until it gives nothing twice) are finished."""
    batcher, recorder = Batcher(batch, b"model"), Recorder(runner)
    tokens: dict[str, list[int]] = {}
    preemptions, open_requests = 0, 0
    for step in range(steps):
        for each in arrivals(step):
            batcher.add(each, float(step))
            tokens[each.key.request_id] = []
            open_requests += 1
        events = batcher.admit(float(step))
        plan = batcher.plan(float(step))
        if plan is not None:
            events += batcher.apply(recorder.execute(plan), float(step))
        batcher.check_invariants()
        for event in events:
            if isinstance(event, Emitted):
                tokens[event.key.request_id].append(event.token)
            elif isinstance(event, Finished):
                open_requests -= 1
            elif isinstance(event, Preempted):
                preemptions += 1
        if not open_requests and step > 50:
            return Answered(tokens, recorder.logits, preemptions)
    raise AssertionError(f"{open_requests} requests are still open after {steps} steps")
