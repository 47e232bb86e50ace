"""The operations in plain torch: the readable reference, on any device."""

import torch
from torch.nn.functional import linear, rms_norm, silu

from services.engine.attention import TorchAttention
from services.engine.backend import Angles, HeadNorms, Norm
from services.engine.batch import Batch
from services.engine.matrix import Int8Matrix, Matrix
from services.engine.rope import rotate


class TorchBackend:
    """Implements `backend.Backend`; what each operation means is said there."""

    def attention(self, batch: Batch) -> TorchAttention:
        return TorchAttention(batch)

    def normalized(self, hidden: torch.Tensor, norm: Norm) -> torch.Tensor:
        return rms_norm(hidden, norm.weight.shape, norm.weight, norm.eps)

    def added(self, hidden: torch.Tensor, update: torch.Tensor, norm: Norm) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = hidden + update
        return hidden, self.normalized(hidden, norm)

    def linear(self, rows: torch.Tensor, matrix: Matrix, bias: torch.Tensor | None = None) -> torch.Tensor:
        if isinstance(matrix, Int8Matrix):
            return linear(rows, matrix.floats().to(rows.dtype), bias)
        return linear(rows, matrix, bias)

    def rotated(
        self, query: torch.Tensor, key: torch.Tensor, angles: Angles, norms: HeadNorms | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if norms is not None:
            query, key = self.normalized(query, norms.query), self.normalized(key, norms.key)
        return rotate(query, angles).to(query.dtype), rotate(key, angles).to(key.dtype)

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return silu(gate) * up
