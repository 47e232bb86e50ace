"""Weight matrices in the forms that the torch engine multiplies by.

Owns int8 with one scale per output channel (row): weights only, activations stay in float.
"""

from dataclasses import dataclass
from typing import TypeAlias

import torch

from services.engine.kv_layer import quantized


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """`values × scales`, row by row."""

    values: torch.Tensor
    """`[out, in]`, int8."""
    scales: torch.Tensor
    """`[out]`, float32."""

    @staticmethod
    def nearest(matrix: torch.Tensor) -> "Int8Matrix":
        """Of a float matrix `[out, in]`; no weight is off by more than half its row's scale."""
        return Int8Matrix(*quantized(matrix))

    def floats(self) -> torch.Tensor:
        """`[out, in]` in float32."""
        return self.values.to(torch.float32) * self.scales[:, None]


Matrix: TypeAlias = torch.Tensor | Int8Matrix
