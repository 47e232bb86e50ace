"""The torch engine behind `StepRunner`: a plan becomes a batch, hidden states, logits where a token is drawn, tokens.

Owns that order and the clock of a step. Must not know how long a chunk should be or which block is free.
"""

from collections.abc import Sequence
from time import perf_counter

import torch

from services.core.plan import Chunk, Draw, StepPlan, StepResult
from services.engine.batch import Batch
from services.engine.kv_cache import KVCache
from services.engine.model import LlamaDecoder
from services.engine.sampler import sample

NOTHING_TO_DRAW = "the model's output is not a number, or leaves no allowed token"


class ModelRunner:
    """Implements `interface.StepRunner`. Used by one thread at a time; transfers go through `kv` beside it."""

    def __init__(self, decoder: LlamaDecoder, cache: KVCache) -> None:
        self._decoder = decoder
        self._cache = cache

    @property
    def kv(self) -> KVCache:
        return self._cache

    def execute(self, plan: StepPlan) -> StepResult:
        """See `StepRunner.execute`."""
        began = perf_counter()
        with torch.inference_mode():
            batch = Batch.of(plan.chunks, self._cache.format.block_size, self._cache.device)
            hidden = self._decoder.forward(batch, self._cache)
            drawing = [
                (chunk, chunk.draw, row)
                for chunk, row in zip(plan.chunks, batch.last_rows, strict=True)
                if chunk.draw is not None
            ]
            tokens = self._tokens(hidden, [(draw, row) for _, draw, row in drawing])
        return _result([chunk for chunk, _, _ in drawing], tokens, perf_counter() - began)

    def _tokens(self, hidden: torch.Tensor, drawing: Sequence[tuple[Draw, int]]) -> list[int | None]:
        if not drawing:
            return []
        logits = self._decoder.logits(hidden[[row for _, row in drawing]])
        return sample(logits, [draw for draw, _ in drawing])


def _result(chunks: Sequence[Chunk], tokens: Sequence[int | None], seconds: float) -> StepResult:
    result = StepResult(drawn={}, seconds=seconds)
    for chunk, token in zip(chunks, tokens, strict=True):
        if token is None:
            result.failed[chunk.key] = NOTHING_TO_DRAW
        else:
            result.drawn[chunk.key] = token
    return result
