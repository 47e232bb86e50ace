"""The operations as Triton kernels: attention, cache and all that is per row; float products stay the vendor's."""

import torch
import triton
from torch.nn.functional import linear

from services.engine.backend import Angles, HeadNorms, Norm
from services.engine.batch import Batch
from services.engine.matrix import Int8Matrix, Matrix
from services.engine.triton.attention import TritonAttention
from services.engine.triton.kernels.linear import int8_linear
from services.engine.triton.kernels.rows import rms_norm, rotate, silu_mul
from services.engine.triton.tiles import PRECISION, padded

_GATED_AT_ONCE = 1024
_OUTPUTS, _INPUTS = 32, 64
"""Tile of an int8 product. Few outputs, so that one row times a small matrix still occupies the device."""


class TritonBackend:
    """Implements `backend.Backend`; what each operation means is said there. Vectors of a row lie together."""

    def attention(self, batch: Batch) -> TritonAttention:
        return TritonAttention(batch)

    def normalized(self, hidden: torch.Tensor, norm: Norm) -> torch.Tensor:
        hidden = hidden.contiguous()
        normed = torch.empty_like(hidden)
        width = hidden.shape[-1]
        rows = hidden.numel() // width
        rms_norm[(rows,)](hidden, None, norm.weight, None, normed, width, norm.eps, BLOCK=padded(width), ADD=False)
        return normed

    def added(self, hidden: torch.Tensor, update: torch.Tensor, norm: Norm) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, update = hidden.contiguous(), update.contiguous()
        summed, normed = torch.empty_like(hidden), torch.empty_like(hidden)
        rows, width = hidden.shape
        rms_norm[(rows,)](hidden, update, norm.weight, summed, normed, width, norm.eps, BLOCK=padded(width), ADD=True)
        return summed, normed

    def linear(self, rows: torch.Tensor, matrix: Matrix, bias: torch.Tensor | None = None) -> torch.Tensor:
        if not isinstance(matrix, Int8Matrix):
            return linear(rows, matrix, bias)
        return _int8(rows.contiguous(), matrix, bias)

    def rotated(
        self, query: torch.Tensor, key: torch.Tensor, angles: Angles, norms: HeadNorms | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, heads, head_dim = query.shape
        cos, sin = (part.contiguous() for part in angles)
        rotate[(rows, heads + key.shape[1])](
            query,
            key,
            norms and norms.query.weight,
            norms and norms.key.weight,
            cos,
            sin,
            query.stride(0),
            key.stride(0),
            norms.query.eps if norms else 0.0,
            norms.key.eps if norms else 0.0,
            HEADS=heads,
            HALF=head_dim // 2,
            BLOCK=padded(head_dim // 2),
            NORMED=norms is not None,
        )
        return query, key

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate_up = gate_up.contiguous()
        rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty((rows, inner))
        silu_mul[(rows, triton.cdiv(inner, _GATED_AT_ONCE))](gate_up, out, inner, BLOCK=_GATED_AT_ONCE)
        return out


def _int8(x: torch.Tensor, matrix: Int8Matrix, bias: torch.Tensor | None) -> torch.Tensor:
    rows, inputs = x.shape
    outputs = matrix.values.shape[0]
    # The height of a tile moves no sum: each of its rows is added up by itself, in the same steps.
    height = min(64, padded(rows))
    out = x.new_empty((rows, outputs))
    int8_linear[(triton.cdiv(outputs, _OUTPUTS), triton.cdiv(rows, height))](
        x,
        matrix.values,
        matrix.scales,
        bias,
        out,
        rows,
        outputs,
        inputs,
        x.stride(0),
        ROWS=height,
        OUTPUTS=_OUTPUTS,
        INPUTS=_INPUTS,
        BIASED=bias is not None,
        PRECISION=PRECISION,
    )
    return out
