"""Settings that both kinds of worker have."""

from pathlib import Path

from pydantic import Field

from services.core.batch_limits import BatchLimits
from services.core.engine_settings import EngineKind, EngineSettings, KVDtype, WeightsMode
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
    cores: tuple[int, ...] = ()
    """Processors that the compute threads keep to, in turn; none lets the system choose."""
    engine: EngineKind = "auto"
    """compiled computes on a CPU; auto takes it where it can compute the model, else torch."""
    device: str = "cpu"
    """Of the torch engine: cpu or cuda."""
    weights: WeightsMode = "auto"
    """auto keeps quantized tensors as in the file and the others in int8; native keeps all as in the file."""
    kv_dtype: KVDtype = "float16"
    """Of the KV cache; all workers that exchange blocks have the same."""
    max_running: int = Field(default=16, ge=1)
    """Most requests that hold blocks at a time."""
    max_waiting: int = Field(default=64, ge=0)
    """Most requests that wait on this worker; more are refused. 0: none but those for which there is a row idle."""
    head_start: float = Field(default=60.0, ge=0)
    """Seconds that one level of importance is worth: so much later may a more important request come and go first.
    Where less important ones are promised a time to their first token, it is a small part of that."""
    max_context: int = Field(default=0, ge=0)
    """Most tokens of a request; 0 takes the model's context, cut to what the KV blocks can hold."""
    step_seconds: float = Field(default=0.18, gt=0)
    """Predicted seconds a step may take; chunks are cut to it, so that a cancellation never waits longer."""
    hung_step_seconds: float = Field(default=10.0, gt=0)
    """A step that takes longer, and ten times as long as predicted, has hung: the worker stops, and its requests go on
    elsewhere."""
    even_chunks: bool = True
    """Chunks of a prompt that is alone take equally long, so that no small last one waits for the transfer of the one
    before; false cuts as much as a step's time allows."""
    event_window: float = Field(default=0.01, ge=0)
    """Seconds from one message with tokens to the next at least: shorter steps share a message. 0: one a step."""
    watermark_blocks: int = Field(default=4, ge=0)
    """Blocks that starting a request leaves for the growth of the others."""
    attach: bool = True
    """Copy straight into and out of the memory of a kvstore on this node; false streams to all."""
    prefix_fetch: bool = True
    """Get the beginning of a prompt out of a kvstore's cache where that is cheaper than computing it; false always
    computes it."""
    publish_answers: bool = True
    """Decode puts the blocks that it computes into a kvstore's cache, for a chat's next turn; false keeps them here."""
    kvstores: list[str] = Field(default_factory=list)
    """Static addresses of kvstores; others are found on the bus."""

    @property
    def of_engine(self) -> EngineSettings:
        """What is the engine's among these."""
        return EngineSettings(
            num_blocks=self.num_blocks,
            threads=self.threads,
            block_size=self.block_size,
            kv_dtype=self.kv_dtype,
            weights=self.weights,
            kind=self.engine,
            device=self.device,
            cores=self.cores,
        )

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
            head_start=self.head_start,
            even_chunks=self.even_chunks,
        )
