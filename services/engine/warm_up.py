"""What steps cost on this machine, measured before the worker serves.

Owns the choice of steps to time. Works with any `StepRunner`. It writes into blocks, so it runs only while none is in
use; and it leaves code and memory warm for the first request.
"""

from services.core.ids import BlockId, RequestId, RequestKey
from services.core.plan import Chunk, Draw, StepPlan
from services.core.request import Sampling
from services.core.step_cost import Sample, StepCost
from services.engine.interface import StepRunner

LONG_CONTEXT = 1536
"""Positions that the longer half of the measured steps reaches back to, where the cache has room for them."""

STEPS = ((1, 1), (8, 1), (1, 16), (1, 64))
"""Measured steps as (chunks, tokens in each)."""

REPEATS = 2
"""Each step is measured this often and the quickest counts: a cold cache or a busy neighbour only makes it slower."""


def warm_up(runner: StepRunner, longest: int) -> StepCost:
    """Time steps, with and without a context, and fit their cost. `longest` is the model's longest context."""
    capacity = runner.kv.num_blocks * runner.kv.format.block_size
    most = max(tokens for _, tokens in STEPS)
    long = max(0, min(LONG_CONTEXT, longest, capacity) - most)
    samples = [
        _measure(runner, chunks, min(tokens, longest, capacity), cached)
        for cached in sorted({0, long})
        for chunks, tokens in STEPS
    ]
    return StepCost.fit(samples)


def _measure(runner: StepRunner, chunks: int, tokens: int, cached: int) -> Sample:
    plan = _plan(runner, chunks, tokens, cached)
    seconds = min(runner.execute(plan).seconds for _ in range(REPEATS))
    context = cached + tokens
    return chunks * tokens, chunks * tokens * context, chunks * context, seconds


def _plan(runner: StepRunner, chunks: int, tokens: int, cached: int) -> StepPlan:
    """Equal chunks over the cache's first blocks. They overwrite one another's KV, which costs the same."""
    blocks = tuple(BlockId(block) for block in range(-(-(cached + tokens) // runner.kv.format.block_size)))
    return StepPlan(
        tuple(
            Chunk(
                key=RequestKey(RequestId(f"warm-up-{index}")),
                tokens=(0,) * tokens,
                start=cached,
                blocks=blocks,
                draw=Draw(Sampling(temperature=0.0), position=cached + tokens),
            )
            for index in range(chunks)
        )
    )
