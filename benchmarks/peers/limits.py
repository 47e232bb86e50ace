"""What the machine allows: the least time that a decode step or a prefill can take on it. Pure.

Counted are the matrices and the scores: norms, rotation and sampling are free here, so a share of 1 is out of reach.
"""

from dataclasses import dataclass
from statistics import median
from typing import Self

from services.core.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class Machine:
    """As measured beside the contenders, on as many threads as they have."""

    read_bytes_per_second: float
    """Of an array that no cache holds."""
    flops_per_second: float
    """Of a large float32 matrix product."""
    whole_per_second: float
    """Operations on whole numbers of 16 bits that are at hand."""

    @classmethod
    def median(cls, samples: list["Machine"]) -> Self:
        return cls(
            median(sample.read_bytes_per_second for sample in samples),
            median(sample.flops_per_second for sample in samples),
            median(sample.whole_per_second for sample in samples),
        )

    @property
    def multiplies_per_second(self) -> float:
        """Of whichever arithmetic is quicker."""
        return max(self.flops_per_second, self.whole_per_second)

    def decode_share(self, weight_bytes: int, tokens_per_second: float) -> float:
        """Of one stream: the time that reading the weights takes, over the time that a step takes."""
        return weight_bytes / self.read_bytes_per_second * tokens_per_second

    def prefill_share(self, flops: float, seconds: float) -> float:
        """Of one prompt: the time that its multiplications take at the quicker rate, over its time."""
        return flops / self.multiplies_per_second / seconds


def layer_parameters(config: ModelConfig) -> int:
    """Elements of all matrices of all layers."""
    attention = (2 * config.heads + 2 * config.kv_heads) * config.head_dim * config.hidden
    return config.layers * (attention + 3 * config.hidden * config.intermediate)


def head_parameters(config: ModelConfig) -> int:
    """Elements of the matrix that makes logits; read once a step, also where it is the embedding."""
    return config.vocab * config.hidden


def prefill_flops(config: ModelConfig, tokens: int) -> float:
    """Of a prompt that nothing is cached of, up to its first token: the head counts once.

    A token attends to itself and what is before it; scores and their weighted sum are two operations per element each.
    """
    matrices = 2 * (layer_parameters(config) * tokens + head_parameters(config))
    pairs = tokens * (tokens + 1) / 2
    return matrices + 4 * config.layers * config.heads * config.head_dim * pairs
