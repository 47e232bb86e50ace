"""What a place costs, in seconds, for all workers of a kind at once. Pure; an array has one element per worker.

Prefill time is the step cost of the prompt's chunks: `n` steps of equal chunks stand for the worker's own cutting
(`core/composition.py`), with the least `n` that keeps a step within its time. That needs no loop, and is within a fifth
of the exact sum as long as a step has room for more than what it spends in any case.
"""

from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.core.step_cost import StepCost

Floats = NDArray[np.float64]

NEAR_BYTES_PER_SECOND = 2.6e9
"""Through shared memory, written and read; measured on loopback (docs/performance.md, "Transfer")."""
FAR_BYTES_PER_SECOND = 0.7e9
"""Streamed in parts of 1 MiB; measured on loopback."""
MOVE_SECONDS = 0.001
"""Of a hand-over or a fetch, whatever its size: messages there and back."""


class Costs(NamedTuple):
    """Coefficients of `core/step_cost.py`, and what a step may take."""

    fixed: Floats
    per_token: Floats
    per_token_context: Floats
    per_context: Floats
    step: Floats


class Prefill(NamedTuple):
    """Computing a prompt's tokens."""

    seconds: Floats
    steps: Floats
    """In so many steps."""


def prefill(costs: Costs, tokens: Floats, cached: Floats, block_size: int, beside: Floats | float = 0.0) -> Prefill:
    """Computing `tokens` (at least 1) behind `cached` positions, in steps that spend `beside` seconds on other rows."""
    each = costs.fixed + beside + costs.per_context * (cached + tokens / 2)
    whole = (
        costs.per_token + costs.per_token_context * (cached + tokens / 2)
    ) * tokens + costs.per_context * tokens / 2
    rise = costs.per_token_context * tokens * tokens / 2
    # n steps take n · each + whole + rise / n together; none may take longer than costs.step, if that can be.
    spare = np.maximum(costs.step - each, 1e-9)
    fewest = (whole + np.sqrt(whole * whole + 4 * rise * spare)) / (2 * spare)
    steps = np.clip(np.ceil(fewest - 1e-9), 1.0, np.ceil(tokens / block_size))
    return Prefill(steps * each + whole + rise / steps, steps)


def rows(costs: Costs, count: Floats, contexts: Floats) -> Floats:
    """What `count` decode rows add to a step; `contexts` is the sum of theirs."""
    return costs.per_token * count + (costs.per_token_context + costs.per_context) * contexts


def move(size: Floats | float, bytes_per_second: Floats | float) -> Floats | float:
    """Copying `size` bytes from a store, or through one; nothing for nothing."""
    return np.where(np.asarray(size) > 0, MOVE_SECONDS + np.asarray(size) / bytes_per_second, 0.0)


def handover(prefilled: Prefill, size: Floats, bytes_per_second: Floats) -> Floats:
    """What is left to copy of `size` bytes when the last chunk is computed: that chunk's, or what computing hid not."""
    whole = size / bytes_per_second
    return MOVE_SECONDS + np.maximum(whole / prefilled.steps, whole - prefilled.seconds)


def backlog(cost: StepCost, step_seconds: float, tokens: int, prompts: int) -> float:
    """Seconds to compute `tokens` that wait on one worker, as `prompts` of equal length in full steps."""
    if tokens <= 0:
        return 0.0
    context = tokens / max(prompts, 1)
    work = tokens * (cost.per_token + cost.per_token_context * context / 2)
    each = cost.fixed + cost.per_context * context / 2
    return work + each * ceil(work / max(step_seconds - each, each, 1e-9))
