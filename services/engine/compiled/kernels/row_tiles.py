"""Vector loops over single rows: sums of squares, SwiGLU, and numbers put into the cache's own dtype."""

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from services.engine.compiled.kernels.vector_ir import BYTE, FLOAT, FLOATS, HALF, INT, LANES, Vectors


@intrinsic
def square_sum(context, row, count):
    """Σ x² over `count` float32 at address `row`; `count` is a multiple of 16."""

    def emit(context, builder, signature, arguments):
        v = Vectors(builder)
        row, count = arguments
        squares = v.variable(v.zeros)
        with v.loop(builder.sdiv(count, v.number(LANES))) as loop:
            x = v.load(FLOATS, v.at(row, v.times(loop.index, 4 * LANES)))
            builder.store(v.fma(x, x, builder.load(squares)), squares)
        return v.total(builder.load(squares))

    return types.float32(types.int64, types.int64), emit


@intrinsic
def weigh_row(context, row, factor, weights, target, count):
    """`count` float32 at address `row` times a factor, times weights; `count` is a multiple of 16."""

    def emit(context, builder, signature, arguments):
        v = Vectors(builder)
        row, factor, weights, target, count = arguments
        factor = v.spread(factor)
        with v.loop(builder.sdiv(count, v.number(LANES))) as loop:
            offset = v.times(loop.index, 4 * LANES)
            x = builder.fmul(v.load(FLOATS, v.at(row, offset)), factor)
            v.store(builder.fmul(x, v.load(FLOATS, v.at(weights, offset))), v.at(target, offset))
        return context.get_dummy_value()

    return types.void(types.int64, types.float32, types.int64, types.int64, types.int64), emit


@intrinsic
def gate_panel(context, gate, up, target):
    """16 outputs of SwiGLU: gate / (1 + e^-gate) · up. Addresses."""

    def emit(context, builder, signature, arguments):
        v = Vectors(builder)
        gate, up, target = arguments
        g, u = v.load(FLOATS, gate), v.load(FLOATS, up)
        bottom = builder.fadd(v.floats(1.0), v.exp(builder.fsub(v.floats(-0.0), g)))
        v.store(builder.fmul(builder.fdiv(g, bottom), u), target)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), emit


@intrinsic(prefer_literal=True)
def put(context, width, address, value):
    """Stores one float32 as a number of `width` bytes, a constant: float32, float16, or int8 rounded to the nearest."""
    size = width.literal_value

    def emit(context, builder, signature, arguments):
        v = Vectors(builder)
        address, value = arguments[1:]
        if size == 2:
            value = builder.fptrunc(value, HALF)
        elif size == 1:
            rounded = builder.module.declare_intrinsic("llvm.nearbyint", [FLOAT])
            value = builder.trunc(builder.fptosi(builder.call(rounded, [value]), INT), BYTE)
        v.store(value, address)
        return context.get_dummy_value()

    return types.void(width, types.int64, types.float32), emit


@intrinsic
def get_float(context, address):
    """The float32 at this address."""

    def emit(context, builder, signature, arguments):
        return Vectors(builder).load(ir.FloatType(), arguments[0])

    return types.float32(types.int64), emit


@intrinsic
def get_long(context, address):
    """The int64 at this address."""

    def emit(context, builder, signature, arguments):
        return Vectors(builder).load(ir.IntType(64), arguments[0])

    return types.int64(types.int64), emit


@intrinsic
def copy_times(context, source, target, count, factor):
    """`count` float32 from one address to another, times a factor; `count` is a multiple of 16."""

    def emit(context, builder, signature, arguments):
        v = Vectors(builder)
        source, target, count, factor = arguments
        factor = v.spread(factor)
        with v.loop(builder.sdiv(count, v.number(LANES))) as loop:
            offset = v.times(loop.index, 4 * LANES)
            v.store(builder.fmul(v.load(FLOATS, v.at(source, offset)), factor), v.at(target, offset))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.float32), emit


@intrinsic
def fill(context, target, count, value):
    """`count` float32 from this address on."""

    def emit(context, builder, signature, arguments):
        v = Vectors(builder)
        target, count, value = arguments
        with v.loop(count) as loop:
            v.store(value, v.at(target, v.times(loop.index, 4)))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), emit
