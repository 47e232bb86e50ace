"""The shape of a Llama-family decoder, as `modelfiles` reads it and the engine builds it."""

import re
from dataclasses import dataclass
from typing import Self

from services.core.errors import KVIncompatible

_FORMAT = re.compile(r"(float32|float16)/b([1-9]\d{0,4})/l([1-9]\d{0,3})/h([1-9]\d{0,3})x([1-9]\d{0,3})")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary positions are stretched beyond the trained length. Names are Hugging Face's `rope_type`."""

    kind: str = "default"
    """`default`, `linear`, `llama3`, `yarn`; `modelfiles` refuses any other by name."""
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0
    """Positions the model was trained on before stretching; 0 where the kind does not need it."""
    attention_factor: float = 1.0
    """Multiplies cos and sin (yarn)."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """RMSNorm, RoPE, grouped-query attention, SwiGLU; Llama, SmolLM2, Qwen2 and Qwen2.5."""

    architecture: str
    """`llama` or `qwen2`."""
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    """Most tokens a request may have, prompt and answer together."""
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling
    tied_embeddings: bool
    attention_bias: bool
    """Biases on q, k and v (Qwen2)."""


@dataclass(frozen=True, slots=True)
class KVFormat:
    """The layout of one block of KV. Two workers exchange blocks only if this and the fingerprint are equal.

    A block is one contiguous run of bytes: `[layers, 2 (k, v), block_size, kv_heads, head_dim]`.
    """

    dtype: str
    """`float32` or `float16`."""
    block_size: int
    """Tokens per block."""
    layers: int
    kv_heads: int
    head_dim: int

    @property
    def block_bytes(self) -> int:
        width = {"float32": 4, "float16": 2}[self.dtype]
        return width * self.layers * 2 * self.block_size * self.kv_heads * self.head_dim

    def __str__(self) -> str:
        return f"{self.dtype}/b{self.block_size}/l{self.layers}/h{self.kv_heads}x{self.head_dim}"

    @classmethod
    def parsed(cls, text: str) -> Self:
        """The format that `str` spelled. Raises KVIncompatible if it is none that this version knows."""
        match = _FORMAT.fullmatch(text)
        if match is None:
            raise KVIncompatible("the KV format is not known here", field="format")
        return cls(match[1], *(int(number) for number in match.groups()[1:]))
