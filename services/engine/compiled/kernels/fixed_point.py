"""Rows of numbers in fixed point, as matrices of whole numbers read them: 16 bits each, with a scale for 32 of them.

    x  ≈  X · s,     s = largest |x| of the group / 32 767,     X whole

so that Σ q · x of a group is s · Σ q · X, a sum of whole numbers: exact, hence the same in any order and with whatever
instructions a processor has for it, at up to twice the rate of float32. What is rounded off a number is at most half of
s, 1/65 534 of the group's largest: less than a float16 KV cache takes.

Rows lie in tiles of eight, group after group, so that a tile is read from front to back with constant distances:

    [tiles][groups][8 rows] of  32 X int16, s float32, Σ X float32
"""

from collections.abc import Sequence

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from services.engine.compiled.kernels.forms import GROUP
from services.engine.compiled.kernels.vector_ir import FLOAT, FLOATS, INT, INTS, LANES, QUADS, SHORTS, Vectors
from services.engine.jit import inner

TILE_ROWS = 8
SCALE_AT, SUM_AT = 2 * GROUP, 2 * GROUP + 4
RECORD = 2 * GROUP + 8
"""Bytes of a row's group."""
GROUP_PITCH = TILE_ROWS * RECORD
"""Bytes from a row's group to the next."""

BYTE_ORDER = [8 * eighth + at for eighth in range(4) for at in (0, 4, 1, 5, 2, 6, 3, 7)]
"""Of a group's numbers, as panels of 4 bits have them (`forms.Group.quads`)."""

_LARGEST = 32767.0
_SMALLEST_SCALED = 1e-30
"""Groups with nothing larger are zeros: their scale would not have an inverse."""


def fixed_bytes(rows: int, inputs: int) -> int:
    """Of so many rows."""
    return -(-rows // TILE_ROWS) * GROUP_PITCH * -(-inputs // GROUP)


@inner
def fix_row(source, inputs, rows, row, count):
    """The row of float32 at address `source` into row number `row` of the `count` fixed-point rows at address `rows`; a
    row that is alone also by its bytes."""
    groups = inputs // GROUP
    tile = rows + np.int64(row // TILE_ROWS) * groups * GROUP_PITCH
    _fix(np.int64(source), tile + np.int64(row % TILE_ROWS) * RECORD, np.int64(groups))
    if count == 1:
        _split(np.int64(rows), np.int64(groups))


@intrinsic
def _fix(context, source, target, groups):
    """A NaN makes its group's scale NaN, and so all that is computed from it; infinity does alike."""

    def emit(context, builder, signature, arguments):
        v = Vectors(builder)
        source, target, groups = arguments
        with v.loop(groups) as loop:
            here, there = v.at(source, v.times(loop.index, 4 * GROUP)), v.at(target, v.times(loop.index, GROUP_PITCH))
            halves = [v.load(FLOATS, v.at(here, 4 * LANES * half)) for half in (0, 1)]
            # As whole numbers the bits of |x| are in the order of |x|, and those of NaN come after all others.
            sizes = [builder.and_(builder.bitcast(half, INTS), v.ints(0x7FFFFFFF)) for half in halves]
            largest = builder.bitcast(v.largest_int(v.larger_int(*sizes)), FLOAT)
            is_nothing = builder.fcmp_ordered("<", largest, ir.Constant(FLOAT, _SMALLEST_SCALED))
            largest = builder.select(is_nothing, ir.Constant(FLOAT, _SMALLEST_SCALED), largest)
            inverse = v.spread(builder.fdiv(ir.Constant(FLOAT, _LARGEST), largest))
            whole = [v.nearest(builder.fmul(half, inverse)) for half in halves]
            for half, numbers in enumerate(whole):
                v.store(builder.trunc(numbers, SHORTS), v.at(there, 2 * LANES * half))
            v.store(builder.fmul(largest, ir.Constant(FLOAT, 1 / _LARGEST)), v.at(there, SCALE_AT))
            v.store(builder.sitofp(v.total_int(builder.add(*whole)), FLOAT), v.at(there, SUM_AT))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), emit


@intrinsic
def _split(context, rows, groups):
    """Puts beside the only row, in the place of a second one, its numbers' bytes: for each group eight quads of the low
    bytes, then of the high ones, in the order of `BYTE_ORDER`."""

    def emit(context, builder, signature, arguments):
        v = Vectors(builder)
        rows, groups = arguments
        order = [2 * at for at in BYTE_ORDER] + [2 * at + 1 for at in BYTE_ORDER]
        mask = ir.Constant(ir.VectorType(INT, 2 * GROUP), order)
        with v.loop(groups) as loop:
            here = v.at(rows, v.times(loop.index, GROUP_PITCH))
            numbers = v.load(QUADS, here)
            v.store(builder.shuffle_vector(numbers, numbers, mask), v.at(here, RECORD))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 2), emit


def quads(v: Vectors, record: ir.Value, number: int) -> Sequence[ir.Value]:
    """Of the only row's record: the low and the high bytes of four of its numbers, in all lanes."""
    low, high = (v.load(INT, v.at(record, RECORD + half + 4 * number)) for half in (0, GROUP))
    return v.spread_quad(low), v.spread_quad(high)


def pair(v: Vectors, record: ir.Value, number: int) -> ir.Value:
    """A pair of a record's numbers, in all lanes."""
    return v.spread_pair(v.load(INT, v.at(record, 4 * number)))
