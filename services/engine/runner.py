"""The torch engine behind `StepRunner`: a plan becomes a batch, hidden states, logits where a token is drawn, tokens.

Owns that order and the clock of a step. Must not know how long a chunk should be or which block is free.
"""

from collections.abc import Iterator, Sequence
from time import perf_counter

import numpy as np
import numpy.typing as npt
import torch

from services.core.memory import EngineMemory
from services.core.plan import Chunk, Draw, Drawn, StepPlan, StepResult
from services.engine.batch import Batch
from services.engine.devices import step_on
from services.engine.kv_cache import KVCache
from services.engine.model import LlamaDecoder
from services.engine.pieces import pieces
from services.engine.sampling.sample import sample
from services.engine.step_result import step_result
from services.engine.torch_memory import torch_memory


class ModelRunner:
    """Implements `interface.StepRunner`. Used by one thread at a time; transfers go through `kv` beside it."""

    def __init__(self, decoder: LlamaDecoder, cache: KVCache) -> None:
        self._decoder = decoder
        self._cache = cache

    @property
    def decoder(self) -> LlamaDecoder:
        return self._decoder

    @property
    def kv(self) -> KVCache:
        return self._cache

    def execute(self, plan: StepPlan) -> StepResult:
        """See `StepRunner.execute`."""
        began = perf_counter()
        with torch.inference_mode(), step_on(self._cache.device):
            batch = Batch.of(plan.chunks, self._cache.format.block_size, self._cache.device)
            hidden = self._decoder.forward(batch, self._cache)
            drawing = [
                (chunk, chunk.draw, row)
                for chunk, row in zip(plan.chunks, batch.last_rows, strict=True)
                if chunk.draw is not None
            ]
            drawn = self._draw(hidden, [(draw, row) for _, draw, row in drawing])
        return step_result([chunk for chunk, _, _ in drawing], drawn, perf_counter() - began)

    def every_logits(self, chunk: Chunk) -> Iterator[npt.NDArray[np.float32]]:
        """See `WholeLogits.every_logits`."""
        for piece in pieces(chunk):
            yield self._logits(piece)

    def memory(self) -> EngineMemory:
        """See `StepRunner.memory`. Rows are allocated within a step and lie in the process's heap, not here."""
        return torch_memory(self._decoder.weights, self._cache)

    def _logits(self, chunk: Chunk) -> npt.NDArray[np.float32]:
        with torch.inference_mode(), step_on(self._cache.device):
            batch = Batch.of((chunk,), self._cache.format.block_size, self._cache.device)
            return self._decoder.logits(self._decoder.forward(batch, self._cache)).float().cpu().numpy()

    def _draw(self, hidden: torch.Tensor, drawing: Sequence[tuple[Draw, int]]) -> list[Drawn | None]:
        if not drawing:
            return []
        logits = self._decoder.logits(hidden[[row for _, row in drawing]])
        return sample(logits.float().cpu().numpy(), [draw for draw, _ in drawing])
