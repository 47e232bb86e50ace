"""Times of single steps of our engine, on blocks of their own for every row."""

import time
from collections.abc import Sequence
from statistics import median

from services.core.ids import BlockId, RequestId, RequestKey
from services.core.plan import Chunk, Draw, StepPlan
from services.core.request import Sampling
from services.engine.interface import StepRunner

GREEDY = Sampling(temperature=0.0)


def decode_seconds(runner: StepRunner, batch: int, context: int, repeats: int) -> float:
    """Of a step in which `batch` requests draw a token behind `context` positions. The median counts.

    What the positions hold does not matter for the time; each request has blocks of its own, as memory knows.
    """
    size = runner.kv.format.block_size
    each = -(-(context + 1) // size)
    chunks = tuple(
        _chunk(f"r{number}", (7 + number,), context, range(number * each, (number + 1) * each))
        for number in range(batch)
    )
    return _median_seconds(runner, StepPlan(chunks), repeats)


def prefill_seconds(runner: StepRunner, length: int, chunk: int, repeats: int) -> float:
    """Of a whole prompt, in chunks. The median counts."""
    blocks = range(-(-length // runner.kv.format.block_size))
    plans = [
        StepPlan((_chunk("r", tuple(3 + at % 1000 for at in range(start, min(start + chunk, length))), start, blocks),))
        for start in range(0, length, chunk)
    ]
    return median(sum(_seconds(runner, plan) for plan in plans) for _ in range(repeats))


def blocks_needed(batch: int, context: int, block_size: int) -> int:
    return batch * -(-(context + 1) // block_size)


def _median_seconds(runner: StepRunner, plan: StepPlan, repeats: int) -> float:
    _seconds(runner, plan)
    return median(_seconds(runner, plan) for _ in range(repeats))


def _seconds(runner: StepRunner, plan: StepPlan) -> float:
    began = time.perf_counter()
    runner.execute(plan)
    return time.perf_counter() - began


def _chunk(name: str, tokens: Sequence[int], start: int, blocks: range) -> Chunk:
    draw = Draw(GREEDY, position=start + len(tokens))
    return Chunk(RequestKey(RequestId(name)), tuple(tokens), start, tuple(map(BlockId, blocks)), draw)
