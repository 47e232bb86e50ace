"""Blocks of 32 quantized weights in ggml's own layout, turned into float32.

    Q4_0   f16 scale             | 16 bytes: two weights each    (q - 8) * scale
    Q4_1   f16 scale, f16 minimum | 16 bytes: two weights each    q * scale + minimum
    Q8_0   f16 scale             | 32 int8                       q * scale

The low halves of the 16 bytes are the first 16 weights, the high halves the last. The arithmetic and its order are
those of ggml (`ggml-quants.c`, `dequantize_row_*`), so that the numbers are the same to the last bit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float32]
Bytes: TypeAlias = npt.NDArray[np.uint8]
_Blocks: TypeAlias = npt.NDArray[Any]

BLOCK_WEIGHTS = 32

_HALF = BLOCK_WEIGHTS // 2
_BLOCKS_AT_ONCE = 4096
"""Half a MiB of results: they stay in the core's own cache from the first pass over them to the last."""


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """One way of storing 32 weights."""

    dtype: np.dtype[Any]
    """A block as a record, without padding."""
    fill: Callable[[_Blocks, Floats], None]
    """Writes the weights of blocks `[n]` to `[n, 32]`."""

    @property
    def block_bytes(self) -> int:
        return self.dtype.itemsize

    def row_bytes(self, weights: int) -> int:
        """Bytes of a row of so many weights, a multiple of 32."""
        return weights // BLOCK_WEIGHTS * self.block_bytes

    def floats(self, rows: Bytes) -> Floats:
        """Rows of whole blocks, `[rows, row_bytes]`, as `[rows, weights]`."""
        blocks = np.ascontiguousarray(rows).reshape(-1).view(self.dtype)
        out = np.empty((len(blocks), BLOCK_WEIGHTS), dtype=np.float32)
        # A scale that is not finite makes weights that are not; they show in the logits, and a warning helps nobody.
        with np.errstate(invalid="ignore"):
            for begin in range(0, len(blocks), _BLOCKS_AT_ONCE):
                end = begin + _BLOCKS_AT_ONCE
                self.fill(blocks[begin:end], out[begin:end])
        return out.reshape(rows.shape[0], rows.shape[1] // self.block_bytes * BLOCK_WEIGHTS)


def _widened(halves: npt.NDArray[np.float16]) -> Floats:
    """`[n]` to `[n, 1]`, to be applied to the 32 weights of each block."""
    return halves.astype(np.float32)[:, None]


def _fill_nibbles(packed: Bytes, out: Floats) -> None:
    out[:, :_HALF] = packed & np.uint8(0x0F)
    out[:, _HALF:] = packed >> np.uint8(4)


def _fill_q4_0(blocks: _Blocks, out: Floats) -> None:
    _fill_nibbles(blocks["packed"], out)
    out -= np.float32(8)
    out *= _widened(blocks["scale"])


def _fill_q4_1(blocks: _Blocks, out: Floats) -> None:
    _fill_nibbles(blocks["packed"], out)
    out *= _widened(blocks["scale"])
    out += _widened(blocks["minimum"])


def _fill_q8_0(blocks: _Blocks, out: Floats) -> None:
    np.multiply(blocks["values"], _widened(blocks["scale"]), out=out)


Q4_0 = BlockLayout(np.dtype([("scale", "<f2"), ("packed", "u1", _HALF)]), _fill_q4_0)
Q4_1 = BlockLayout(np.dtype([("scale", "<f2"), ("minimum", "<f2"), ("packed", "u1", _HALF)]), _fill_q4_1)
Q8_0 = BlockLayout(np.dtype([("scale", "<f2"), ("values", "i1", BLOCK_WEIGHTS)]), _fill_q8_0)
