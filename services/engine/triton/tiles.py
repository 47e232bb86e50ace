"""What all launches agree on."""

import triton

PRECISION = "tf32x3"
"""How tensor cores multiply float32: in three parts, which keeps float32's error. Without effect on float16."""

_SMALLEST = 16


def padded(size: int) -> int:
    """The power of two that a dimension of a tile is padded to; matrix units take at least 16."""
    return max(_SMALLEST, int(triton.next_power_of_2(size)))
