"""The operations a decoder is made of, whatever computes them: plain torch anywhere, Triton kernels on a GPU.

Owns the two protocols and their operands. Must not know any implementation.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from services.engine.batch import Batch
from services.engine.kv_layer import LayerKV
from services.engine.matrix import Matrix


@dataclass(frozen=True, slots=True)
class Norm:
    """RMS normalization over the last dimension: x ÷ sqrt(mean(x²) + eps) × weight."""

    weight: torch.Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Normalizations of each query head and each key head before they are rotated (Qwen3)."""

    query: Norm
    key: Norm


Angles = tuple[torch.Tensor, torch.Tensor]
"""Cosine and sine of every row's rotation, each `[rows, 1, head_dim / 2]`, float32."""


class PagedAttention(Protocol):
    """The rows of one step at the KV cache, one layer at a time."""

    def store(self, key: torch.Tensor, value: torch.Tensor, layer: LayerKV) -> None:
        """Write the rows' key and value, each `[rows, kv_heads, head_dim]`, where the batch says."""
        ...

    def attend(self, query: torch.Tensor, layer: LayerKV) -> torch.Tensor:
        """Each row attends to its request's positions up to its own, all of them stored already.

        `query` is `[rows, heads, head_dim]` and so is the result.
        """
        ...


class Backend(Protocol):
    """Everything between the embedding and the logits. Vectors are float32 or float16, sums are always float32."""

    def attention(self, batch: Batch) -> PagedAttention:
        """Lay the rows of a step out, once for all layers."""
        ...

    def normalized(self, hidden: torch.Tensor, norm: Norm) -> torch.Tensor:
        """`[rows, hidden]`, normalized."""
        ...

    def added(self, hidden: torch.Tensor, update: torch.Tensor, norm: Norm) -> tuple[torch.Tensor, torch.Tensor]:
        """`hidden + update`, and that normalized."""
        ...

    def linear(self, rows: torch.Tensor, matrix: Matrix, bias: torch.Tensor | None = None) -> torch.Tensor:
        """`[rows, in]` to `[rows, out]`."""
        ...

    def rotated(
        self, query: torch.Tensor, key: torch.Tensor, angles: Angles, norms: HeadNorms | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Query `[rows, heads, head_dim]` and key `[rows, kv_heads, head_dim]`, normalized and rotated.

        The operands may be overwritten.
        """
        ...

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """SwiGLU: `[rows, 2 × inner]`, gate then up, to silu(gate) × up `[rows, inner]`."""
        ...
