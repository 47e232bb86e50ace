"""The least time that a step can take on a machine: the slower of reading and of multiplying. Pure."""

from dataclasses import dataclass

from peers.limits import head_parameters, layer_parameters, prefill_flops
from services.core.model_config import KVFormat, ModelConfig


@dataclass(frozen=True, slots=True)
class StepLimit:
    """Of one model on one machine."""

    config: ModelConfig
    kv: KVFormat
    weight_bytes: int
    """What a step reads of the weights."""
    read_bytes_per_second: float
    flops_per_second: float

    def decode(self, batch: int, context: int) -> float:
        """Seconds of a step of `batch` rows, each behind `context` positions."""
        token_bytes = self.kv.block_bytes / self.kv.block_size
        read = self.weight_bytes + batch * (context + 1) * token_bytes
        flops = batch * (2 * self._parameters + self._attention_flops * (context + 1))
        return max(read / self.read_bytes_per_second, flops / self.flops_per_second)

    def prefill(self, length: int) -> float:
        """Seconds of a prompt; of the last row alone logits are made."""
        flops = prefill_flops(self.config, length)
        return max(self.weight_bytes / self.read_bytes_per_second, flops / self.flops_per_second)

    @property
    def _parameters(self) -> int:
        """Elements of all matrices that a row is multiplied by."""
        return layer_parameters(self.config) + head_parameters(self.config)

    @property
    def _attention_flops(self) -> int:
        """Of a row and one position: a score and a weighted value for every head of every layer."""
        return 4 * self.config.layers * self.config.heads * self.config.head_dim
