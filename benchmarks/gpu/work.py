"""How much a kernel has to do at the least, and how long that takes at the device's limits.

Pure. Bytes are those that must cross the memory once, however often a kernel reads them; FLOPs count a multiplication
and an addition as two.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_HALF, _SCALE = 2, 4
_KV_WIDTHS = {"float16": 2, "int8": 1}


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model. Rows are float16."""

    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int


@dataclass(frozen=True, slots=True)
class Work:
    """What a kernel cannot avoid."""

    bytes: int
    flops: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What the device reaches, measured: bytes per second of a large copy, FLOP per second of a large product."""

    bandwidth: float
    flops: float

    def seconds(self, work: Work) -> float:
        """The least that the work can take: the slower of moving and computing, were both perfect."""
        return max(work.bytes / self.bandwidth, work.flops / self.flops)


def decode_attention(shape: Shape, contexts: Sequence[int], kv_dtype: str) -> Work:
    """One row for each context, whose KV is read once."""
    rows = _row_bytes(len(contexts), shape.heads * shape.head_dim)
    return Work(
        bytes=2 * rows + sum(contexts) * kv_bytes(shape, kv_dtype),
        flops=4 * shape.heads * shape.head_dim * sum(contexts),
    )


def prefill_attention(shape: Shape, chunk: tuple[int, int], kv_dtype: str) -> Work:
    """A chunk (positions before it, tokens in it): causal, so half of the square of its tokens is computed."""
    before, size = chunk
    pairs = size * before + size * (size + 1) // 2
    rows = _row_bytes(size, shape.heads * shape.head_dim)
    return Work(
        bytes=2 * rows + (before + size) * kv_bytes(shape, kv_dtype),
        flops=4 * shape.heads * shape.head_dim * pairs,
    )


def kv_write(shape: Shape, rows: int, kv_dtype: str) -> Work:
    """Key and value are read in float16 and written as the cache keeps them."""
    return Work(bytes=rows * (2 * _row_bytes(1, shape.kv_heads * shape.head_dim) + kv_bytes(shape, kv_dtype)), flops=0)


def int8_linear(rows: int, inputs: int, outputs: int) -> Work:
    """Rows times an int8 matrix with a scale per output."""
    weights = outputs * (inputs + _SCALE)
    return Work(bytes=weights + _row_bytes(rows, inputs + outputs), flops=2 * rows * inputs * outputs)


def per_row(rows: int, read: int, written: int) -> Work:
    """Arithmetic that counts for nothing beside the float16 values read and written for each row."""
    return Work(bytes=_row_bytes(rows, read + written), flops=0)


def kv_bytes(shape: Shape, kv_dtype: str) -> int:
    """Of one position in one layer."""
    scale = _SCALE if kv_dtype == "int8" else 0
    return 2 * shape.kv_heads * (shape.head_dim * _KV_WIDTHS[kv_dtype] + scale)


def _row_bytes(rows: int, width: int) -> int:
    return rows * width * _HALF
