"""What is moved: blocks of real models, as many as a prompt has. Pure."""

from dataclasses import dataclass

from services.core.model_config import KVFormat


@dataclass(frozen=True, slots=True)
class Shape:
    """The blocks of one prompt."""

    name: str
    format: KVFormat
    blocks: int

    @property
    def bytes(self) -> int:
        return self.blocks * self.format.block_bytes


SHAPES = (
    Shape("SmolLM2 135M", KVFormat("float16", block_size=16, layers=30, kv_heads=3, head_dim=64), blocks=256),
    Shape("Llama 3.1 8B", KVFormat("float16", block_size=16, layers=32, kv_heads=8, head_dim=128), blocks=32),
)
"""Blocks of 360 KiB and of 2 MiB; prompts of 4 096 and of 512 tokens."""
