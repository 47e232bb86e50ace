"""A worker's own word on itself."""

from dataclasses import dataclass

from services.core.step_cost import StepCost

STEP_SECONDS = 0.18
BLOCK_SIZE = 16
"""Taken for those of a worker that does not say."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker as it last described itself."""

    address: str
    name: str
    service: str
    """`prefill` or `decode`."""
    fingerprint: str
    format: str
    is_ready: bool
    running: int
    waiting: int
    max_running: int
    blocks_total: int
    blocks_used: int
    waiting_tokens: int
    stores: frozenset[str] = frozenset()
    """Addresses of stores it has a session with."""
    near_stores: frozenset[str] = frozenset()
    """Of these, those it copies to and from without a network."""
    cost: StepCost | None = None
    """Of its steps, as it measures them; None until it says so."""
    step_seconds: float = STEP_SECONDS
    """What a step may take; prompts are cut to it."""
    block_size: int = BLOCK_SIZE
    context_tokens: int = 0
    """Tokens of the requests that it runs, all together."""
    own_tokens: int = 0
    """Of `waiting_tokens`, those that come from nowhere else: what a decode worker has to prefill by itself."""
    max_context: int = 0
    """Most tokens of a request; 0 where it does not say."""
