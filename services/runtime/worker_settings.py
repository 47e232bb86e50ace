"""Settings that both kinds of worker have."""

from pathlib import Path

from pydantic import Field

from services.core.batch_limits import BatchLimits
from services.core.model_config import ModelConfig
from services.core.step_cost import StepCost
from services.runtime.settings import ServiceSettings


class WorkerSettings(ServiceSettings):
    """What an operator chooses for a worker; what the model dictates is in its prepared directory."""

    model: Path
    """A prepared model directory, as `diptych model pull` and `diptych up` make it."""
    num_blocks: int = Field(default=512, ge=2)
    """KV blocks."""
    block_size: int = Field(default=16, ge=1)
    """Tokens per block; all workers that exchange blocks have the same."""
    threads: int = Field(default=1, ge=1)
    """Compute threads. One, where workers share a machine."""
    max_running: int = Field(default=8, ge=1)
    """Most requests that hold blocks at a time."""
    max_waiting: int = Field(default=64, ge=0)
    """Most requests that wait on this worker; more are refused."""
    max_context: int = Field(default=0, ge=0)
    """Most tokens of a request; 0 takes the model's context, cut to what the KV blocks can hold."""
    step_seconds: float = Field(default=0.18, gt=0)
    """Predicted seconds a step may take; chunks are cut to it, so that a cancellation never waits longer."""
    watermark_blocks: int = Field(default=4, ge=0)
    """Blocks that starting a request leaves for the growth of the others."""
    kvstores: list[str] = Field(default_factory=list)
    """Static addresses of kvstores; others are found on the bus."""

    def limits(self, model: ModelConfig, cost: StepCost) -> BatchLimits:
        """What the batch may hold, for this model and steps of this cost."""
        capacity = self.num_blocks * self.block_size
        return BatchLimits(
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            max_running=self.max_running,
            max_waiting=self.max_waiting,
            max_context=min(self.max_context or model.context, model.context, capacity),
            step_seconds=self.step_seconds,
            cost=cost,
            watermark_blocks=self.watermark_blocks,
            vocab=model.vocab,
        )
