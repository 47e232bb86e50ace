"""The shape of a Llama-family decoder, as `modelfiles` reads it and the engine builds it."""

import re
from dataclasses import dataclass
from typing import Self

from services.core.errors import KVIncompatible

_LAYOUT = "kt1"
"""Names the order of values in a block (k transposed, first version). Another order takes another name, so that blocks
of two versions never mix."""

_COUNT = r"([1-9]\d{0,3})"
_FORMAT = re.compile(rf"(float32|float16|int8)/{_LAYOUT}/b([1-9]\d{{0,4}})/l{_COUNT}/h{_COUNT}x{_COUNT}")
_WIDTHS = {"float32": 4, "float16": 2, "int8": 1}
_SCALE_BYTES = 4


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
    """RMSNorm, RoPE, grouped-query attention, SwiGLU; Llama, SmolLM2, Mistral, Qwen2, Qwen2.5 and Qwen3."""

    architecture: str
    """`llama`, `mistral`, `qwen2` or `qwen3`; a GGUF file calls a Mistral `llama`."""
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    """Most tokens a request may have, prompt and answer together.

    At most the sliding window of a model that has one: within it every token sees all before it, so full attention is
    exact there, and nothing beyond is served."""
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling
    tied_embeddings: bool
    attention_bias: bool
    """Biases on q, k and v (Qwen2)."""
    output_bias: bool = False
    """A bias on the attention's output projection."""
    qk_norm: bool = False
    """RMSNorm over each head of q and k before they are rotated, one weight `[head_dim]` each per layer (Qwen3)."""


WHOLE = slice(None)
"""All bytes of a block."""


@dataclass(frozen=True, slots=True)
class KVFormat:
    """The layout of one block of KV. Two workers exchange blocks only if this and the fingerprint are equal.

    A block is one contiguous run of bytes; for each layer in order:

        k        [kv_heads, head_dim, block_size]    transposed: a dot product over many tokens reads runs of tokens
        v        [kv_heads, block_size, head_dim]
        k_scale  [kv_heads, block_size]              float32, int8 only: value = int8 × scale of its token and head
        v_scale  [kv_heads, block_size]

    `head_dim` is even, as rotary positions need it, so that the scales of an int8 block are aligned.
    """

    dtype: str
    """`float32`, `float16` or `int8`."""
    block_size: int
    """Tokens per block."""
    layers: int
    kv_heads: int
    head_dim: int

    @property
    def scaled(self) -> bool:
        """Whether values have scales beside them."""
        return self.dtype == "int8"

    @property
    def width(self) -> int:
        """Bytes of a stored number."""
        return _WIDTHS[self.dtype]

    @property
    def layer_bytes(self) -> int:
        vector = self.head_dim * self.width + (_SCALE_BYTES if self.scaled else 0)
        return 2 * self.kv_heads * self.block_size * vector

    @property
    def block_bytes(self) -> int:
        return self.layers * self.layer_bytes

    def __str__(self) -> str:
        return f"{self.dtype}/{_LAYOUT}/b{self.block_size}/l{self.layers}/h{self.kv_heads}x{self.head_dim}"

    @classmethod
    def parsed(cls, text: str) -> Self:
        """The format that `str` spelled. Raises KVIncompatible if it is none that this version knows."""
        match = _FORMAT.fullmatch(text)
        if match is None:
            raise KVIncompatible("the KV format is not known here", field="format")
        return cls(match[1], *(int(number) for number in match.groups()[1:]))
