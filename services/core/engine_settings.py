"""What an operator chooses about an engine; what the model dictates is in its `ModelConfig`."""

from dataclasses import dataclass
from typing import Literal

EngineKind = Literal["auto", "compiled", "torch"]
KVDtype = Literal["float32", "float16", "int8"]
WeightsMode = Literal["auto", "native", "int8", "float32"]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Of one worker's engine."""

    num_blocks: int
    """Blocks in the KV cache; `KVFormat.block_bytes` each."""
    threads: int = 1
    """Compute threads."""
    block_size: int = 16
    kv_dtype: KVDtype = "float16"
    """Of the KV cache. int8 has a scale per token and head."""
    weights: WeightsMode = "auto"
    """auto: quantized tensors as in the file, others int8 per channel; native: all as in the file; int8; float32."""
    kind: EngineKind = "auto"
    """auto: compiled on a CPU where it can compute the model, else torch."""
    device: str = "cpu"
    """Of the torch engine."""
    cores: tuple[int, ...] = ()
    """Processors that the compute threads keep to, in turn; none lets the system choose."""
