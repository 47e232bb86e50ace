"""The compiled engine behind `StepRunner`: a plan becomes arrays, one call computes them, tokens are drawn.

Owns the buffers of a step and the clock. Must not know how long a chunk should be or which block is free.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import numpy.typing as npt

from services.core.ids import BlockId, RequestId, RequestKey
from services.core.memory import EngineMemory
from services.core.model_config import ModelConfig
from services.core.plan import Chunk, StepPlan, StepResult
from services.engine.compiled.kernels.attention import scratch_bytes
from services.engine.compiled.kernels.fixed_point import fixed_bytes
from services.engine.compiled.kernels.forms import PANEL
from services.engine.compiled.kernels.linear import scratch_bytes as panel_scratch_bytes
from services.engine.compiled.kernels.linear_kernels import FEW
from services.engine.compiled.kernels.step import COUNTERS_AROUND, COUNTERS_PER_LAYER, step
from services.engine.compiled.kernels.step_data import Model, Space, Work
from services.engine.compiled.kernels.team import COUNTER
from services.engine.compiled.kernels.turns import PHASES, Team
from services.engine.compiled.kv_memory import KVMemory
from services.engine.compiled.memory import compiled_memory
from services.engine.compiled.threads import Threads
from services.engine.compiled.weights import DecoderWeights
from services.engine.compiled.work import keeping_all, work_of
from services.engine.pieces import pieces
from services.engine.sampling.sample import sample
from services.engine.step_result import step_result

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Profile:
    """Where the time of the steps so far went, in the processor's ticks, over all threads."""

    phases: dict[str, int]


class CompiledRunner:
    """Implements `interface.StepRunner`. Used by one thread at a time; transfers go through `kv` beside it."""

    def __init__(
        self, config: ModelConfig, weights: DecoderWeights, model: Model, cache: KVMemory, threads: Threads
    ) -> None:
        self._config = config
        self._weights = weights
        """Kept because `model` only has addresses of what it owns."""
        self._model = model
        self._cache = cache
        self._threads = threads
        self._team = Team(
            threads.count,
            np.zeros((COUNTERS_AROUND + COUNTERS_PER_LAYER * config.layers, 1 + threads.count, COUNTER), np.int64),
            np.zeros((threads.count, len(PHASES)), np.int64),
        )
        self._space = self._space_for(1, 1)

    @property
    def kv(self) -> KVMemory:
        return self._cache

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def model(self) -> Model:
        """What the step reads, whose memory `weights` owns."""
        return self._model

    @property
    def weights(self) -> DecoderWeights:
        return self._weights

    @property
    def profile(self) -> Profile:
        totals = self._team.ticks.sum(axis=0)
        return Profile({name: int(total) for name, total in zip(PHASES, totals, strict=True)})

    def memory(self) -> EngineMemory:
        """See `StepRunner.memory`."""
        return compiled_memory(self._weights, self._cache, (*self._model, *self._space, *self._team))

    def execute(self, plan: StepPlan) -> StepResult:
        """See `StepRunner.execute`."""
        began = perf_counter()
        logits = self.logits(plan.chunks)
        drawing = [(chunk, chunk.draw) for chunk in plan.chunks if chunk.draw is not None]
        tokens = sample(logits, [draw for _, draw in drawing]) if drawing else []
        return step_result([chunk for chunk, _ in drawing], tokens, perf_counter() - began)

    def compile(self) -> None:
        """Has the step compiled, or read from disk; writes into block 0, so only while none is in use."""
        self.logits([Chunk(RequestKey(RequestId("compile")), (0,), 0, (BlockId(0),), None)])

    def logits(self, chunks: Sequence[Chunk]) -> Logits:
        """`[rows that draw, vocab]`, in the order of the chunks; overwritten by the next step."""
        return self._compute(work_of(chunks, self._cache.format.block_size))

    def every_logits(self, chunk: Chunk) -> Iterator[Logits]:
        """See `WholeLogits.every_logits`."""
        for piece in pieces(chunk):
            work = work_of([piece], self._cache.format.block_size)
            yield self._compute(keeping_all(work, has_logits=True))

    def hidden(self, chunk: Chunk) -> npt.NDArray[np.float32]:
        """`[tokens, hidden]` of a chunk after the last layer; overwritten by the next step."""
        work = work_of([chunk], self._cache.format.block_size)
        self._compute(keeping_all(work, has_logits=False))
        return self._space.hidden[: work.tokens.size]

    def of_model(self, model: Model) -> "CompiledRunner":
        """This engine for another model of the same shapes or with fewer layers, on the same cache and threads."""
        return CompiledRunner(self._config, self._weights, model, self._cache, self._threads)

    def _compute(self, work: Work) -> Logits:
        self._make_room(work)
        self._team.counters[:] = 0
        cache, team, model, space = self._cache.view, self._team, self._model, self._space
        compute: Callable[..., None] = step
        self._threads.run(lambda thread: compute(thread, team, model, work, space, cache))
        return self._space.logits[: work.kept.size, : self._config.vocab]

    def _make_room(self, work: Work) -> None:
        rows, drawing = len(self._space.hidden), len(self._space.logits)
        wanted = work.kept.size if work.has_logits else 0
        if work.tokens.size > rows or wanted > drawing:
            self._space = self._space_for(max(rows, _rounded(work.tokens.size)), max(drawing, _rounded(wanted)))

    def _space_for(self, rows: int, drawing: int) -> Space:
        config, threads = self._config, self._threads.count
        queries = config.heads * config.head_dim
        widest = max(config.hidden, config.intermediate, queries)
        group = config.heads // config.kv_heads

        def floats(*shape: int) -> npt.NDArray[np.float32]:
            return np.zeros(shape, np.float32)

        return Space(
            hidden=floats(rows, config.hidden),
            normed=floats(rows, config.hidden),
            fixed=np.zeros(fixed_bytes(rows, widest), np.uint8),
            own=floats(threads, FEW, config.hidden),
            own_fixed=np.zeros((threads, fixed_bytes(FEW, widest)), np.uint8),
            qkv=floats(rows, queries + 2 * config.kv_heads * config.head_dim),
            attended=floats(rows, queries),
            gate_up=floats(rows, 2 * config.intermediate),
            activated=floats(rows, config.intermediate),
            logits=floats(drawing, -(-config.vocab // PANEL) * PANEL),
            panels=floats(threads, panel_scratch_bytes(widest) // 4),
            attention=floats(threads, scratch_bytes(group, config.head_dim) // 4),
        )


def _rounded(count: int) -> int:
    """A power of two, so that growing batches do not get new buffers each time."""
    return 1 << max(count - 1, 0).bit_length()
