"""Linear layers over packed panels, shared out among threads.

Whole numbers are multiplied by rows in fixed point, decoded in registers however many rows there are (see
`fixed_tiles`). So are floats for few rows, which is limited by reading them; for more rows panels of 16-bit floats are
decoded once into scratch that stays in the cache, and all rows run over that. Both ways give the same bits.
"""

from typing import NamedTuple

import numpy as np

from services.engine.compiled.kernels.calls import call
from services.engine.compiled.kernels.forms import PANEL
from services.engine.compiled.kernels.linear_kernels import FEW, MOST_ROWS
from services.engine.compiled.kernels.row_tiles import gate_panel
from services.engine.compiled.kernels.turns import Turn, claim
from services.engine.jit import inner

SHARE, SMALL_SHARE = 4, 2
"""Panels that a thread takes at a time: with few rows of floats as many as a tile has side by side, otherwise as few as
leave no thread waiting at the end. An even number, for gate and up belong together."""
ROWS_TOGETHER = 24
ROWS_BYTES = 256 << 10
"""How many rows run over the same panels before the next rows do: at least so many, else what fills these bytes."""

MATRIX = np.dtype(
    [(name, "i8") for name in ("panels", "panel_bytes", "outputs", "inputs", "fixed", "few", "many", "decode")],
    align=True,
)
"""A packed matrix: address and size of its panels, outputs in whole panels, and the addresses of its kernels. `fixed`
is 0 for floats, `few` and `many` for whole numbers, `decode` for float32, which needs none."""


def scratch_bytes(inputs: int) -> int:
    """Of a thread's own space for decoded panels."""
    return SHARE * inputs * PANEL * 4


class Rows(NamedTuple):
    """Rows of float32 in memory, or rows in fixed point, as the matrix reads them; for compiled code."""

    address: int
    stride: int
    """Bytes from row to row, of float32."""
    count: int


class Job(NamedTuple):
    """What one thread needs to do its part of a layer."""

    turn: Turn
    scratch: int
    """Address of the thread's own `scratch_bytes`."""
    adds: int
    """1 to add to the result's rows, 0 to overwrite them."""


@inner
def _share(matrix, rows):
    return SHARE if rows <= FEW and matrix.fixed == 0 else SMALL_SHARE


@inner
def pieces(matrix, rows):
    """In how many pieces the work of a linear layer is handed out."""
    return (matrix.outputs // PANEL + _share(matrix, rows) - 1) // _share(matrix, rows)


@inner
def linear(matrix, x, y, job):
    """One thread's part of y (+)= x · Wᵀ; returns how many pieces it did."""
    panels, share, total = matrix.outputs // PANEL, _share(matrix, x.count), pieces(matrix, x.count)
    mine = 0
    piece = claim(job.turn, total)
    while piece < total:
        first = piece * share
        _panels(matrix, first, min(first + share, panels), x, y, job)
        mine += 1
        piece = claim(job.turn, total)
    return mine


@inner
def gated(matrix, x, gate_up, y, job):
    """One thread's part of SwiGLU's first half; returns how many pieces it did. The matrix's panels are of gate and up
    by turns, and so are those of `gate_up`; y gets gate / (1 + e^-gate) · up."""
    panels, share, total = matrix.outputs // PANEL, _share(matrix, x.count), pieces(matrix, x.count)
    mine = 0
    piece = claim(job.turn, total)
    while piece < total:
        first = piece * share
        end = min(first + share, panels)
        _panels(matrix, first, end, x, gate_up, job)
        for row in range(x.count):
            source, target = gate_up.address + row * gate_up.stride, y.address + row * y.stride
            for panel in range(first, end, 2):
                gate = source + panel * PANEL * 4
                gate_panel(gate, gate + PANEL * 4, target + panel // 2 * PANEL * 4)
        mine += 1
        piece = claim(job.turn, total)
    return mine


@inner
def decoded(matrix, first, count, scratch):
    """The address of `count` panels of float32: of the matrix itself, or of scratch after decoding into it."""
    source = matrix.panels + first * matrix.panel_bytes
    if matrix.decode == 0:
        return source
    call(matrix.decode, (source, matrix.panel_bytes, count, matrix.inputs, scratch))
    return scratch


@inner
def _panels(matrix, first, end, x, y, job):
    target = y.address + first * PANEL * 4
    source, count = matrix.panels + first * matrix.panel_bytes, end - first
    if matrix.fixed != 0:
        call(
            matrix.fixed,
            (source, matrix.panel_bytes, count, matrix.inputs, x.address, x.count, target, y.stride, job.adds),
        )
        return
    if x.count <= FEW:
        call(
            matrix.few,
            (
                source,
                matrix.panel_bytes,
                count,
                matrix.inputs,
                x.address,
                x.stride,
                x.count,
                target,
                y.stride,
                job.adds,
            ),
        )
        return
    source = decoded(matrix, first, count, job.scratch)
    size = matrix.inputs * PANEL * 4
    # Some rows at a time over all the panels, so that both stay in the second-level cache.
    rows = max(ROWS_TOGETHER, ROWS_BYTES // (matrix.inputs * 4) // MOST_ROWS * MOST_ROWS)
    for row in range(0, x.count, rows):
        height = min(rows, x.count - row)
        row_source, row_target = x.address + row * x.stride, target + row * y.stride
        for panel in range(count):
            call(
                matrix.many,
                (
                    source + panel * size,
                    matrix.inputs,
                    row_source,
                    x.stride,
                    height,
                    row_target + panel * PANEL * 4,
                    y.stride,
                    job.adds,
                ),
            )
