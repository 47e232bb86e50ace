"""The inner loops of attention over one page of 16 positions, for some rows (query heads) that read one KV head.

Keys lie transposed, `[head_dim][positions]`, so scores are a tile like a linear layer's: one chain of fused
multiply-adds per score, over the head's dimensions in order. Softmax is online (Milakov and Gimelshein 2018,
arXiv:1805.02867) and moves on page by page, so what a row computes depends on its context alone, however it is batched
or chunked.
"""

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from services.engine.compiled.kernels.processor import HAS_WIDE_REGISTERS
from services.engine.compiled.kernels.vector_ir import BYTE, FLOAT, FLOATS, INT, Vectors

PAGE = 16
"""Positions per page. A block holds one page or several."""
MASKED = -1e30
"""The score of a position that may not be seen, and the largest score before any was seen."""
CACHE_LINE = 64
HEIGHT = 8 if HAS_WIDE_REGISTERS else 6
"""Most rows at once: their sums stay in registers."""
DTYPES = {4: "float32", 2: "float16", 1: "int8"}
"""Of the cache, by the bytes of a number."""


@intrinsic(prefer_literal=True)
def score_tile(context, width, keys, pitch, queries, rows, head_dim, scores):
    """Scores `[rows][16]` of `rows` queries, one after the other, with a page of keys.

    A dimension's keys are `pitch` bytes from the next one's. The bytes of a number, `width`, is a constant.
    """
    dtype = DTYPES[width.literal_value]

    def emit(context, builder, signature, arguments):
        v = Vectors(builder)
        keys, pitch, queries, rows, head_dim, scores = arguments[1:]
        row_bytes = v.times(head_dim, 4)

        def some_rows(first: ir.Value, height: int) -> None:
            q_rows = [v.at(queries, builder.mul(v.at(first, row), row_bytes)) for row in range(height)]
            sums = v.sums(height)
            with v.loop(head_dim) as loop:
                key = v.widened(dtype, v.at(keys, builder.mul(loop.index, pitch)))
                for query_row, slot in zip(q_rows, sums, strict=True):
                    query = v.spread_from(v.at(query_row, v.times(loop.index, 4)))
                    builder.store(v.fma(query, key, builder.load(slot)), slot)
            for row, slot in enumerate(sums):
                v.store(builder.load(slot), v.at(scores, v.times(v.at(first, row), 4 * PAGE)))

        v.by_rows(rows, HEIGHT, some_rows)
        return context.get_dummy_value()

    return types.void(width, *[types.int64] * 6), emit


@intrinsic(prefer_literal=True)
def value_tile(context, width, values, head_dim, weights, shrink, outputs, rows):
    """For 16 dimensions: outputs · shrink + Σ over the page's positions, in order, of weight · value.

    Values and outputs are `head_dim` numbers from one position or row to the next; weights are `[rows][16]`, shrink
    `[rows]`.
    """
    dtype = DTYPES[width.literal_value]

    def emit(context, builder, signature, arguments):
        v = Vectors(builder)
        values, head_dim, weights, shrink, outputs, rows = arguments[1:]
        pitch = v.times(head_dim, width.literal_value)

        def some_rows(first: ir.Value, height: int) -> None:
            numbers = [v.at(first, row) for row in range(height)]
            targets = [v.at(outputs, builder.mul(number, v.times(head_dim, 4))) for number in numbers]
            sums = v.sums(height)
            for slot, number, target in zip(sums, numbers, targets, strict=True):
                factor = v.spread_from(v.at(shrink, v.times(number, 4)))
                builder.store(builder.fmul(factor, v.load(FLOATS, target)), slot)
            here = v.at(weights, v.times(first, 4 * PAGE))
            for position in range(PAGE):
                value = v.widened(dtype, v.at(values, v.times(pitch, position)))
                for row, slot in enumerate(sums):
                    weight = v.spread_from(v.at(here, 4 * (PAGE * row + position)))
                    builder.store(v.fma(weight, value, builder.load(slot)), slot)
            for target, slot in zip(targets, sums, strict=True):
                v.store(builder.load(slot), target)

        v.by_rows(rows, HEIGHT, some_rows)
        return context.get_dummy_value()

    return types.void(width, *[types.int64] * 6), emit


@intrinsic(prefer_literal=True)
def soften(context, width, scores, seen, largest, total, shrink, key_scales, value_scales):
    """One row's 16 scores into weights, in place; those from `seen` on are 0. Brings the row's largest score and total
    weight up to date; `shrink` is what earlier outputs are multiplied by. Numbers of one byte have scales."""
    is_scaled = width.literal_value == 1

    def emit(context, builder, signature, arguments):
        v = Vectors(builder)
        scores, seen, largest, total, shrink, key_scales, value_scales = arguments[1:]
        score = v.load(FLOATS, scores)
        if is_scaled:
            score = builder.fmul(score, v.load(FLOATS, key_scales))
        is_seen = v.first_lanes(seen)
        score = builder.select(is_seen, score, v.floats(MASKED))
        before = v.load(FLOAT, largest)
        here = v.largest(score)
        grows = builder.fcmp_ordered(">", here, before)
        top = builder.select(grows, here, before)
        weight = builder.select(is_seen, v.exp(builder.fsub(score, v.spread(top))), v.zeros)
        v.store(top, largest)
        v.store(ir.Constant(FLOAT, 1.0), shrink)
        # Mostly the largest score has been seen before; what came earlier then stays as it is.
        with builder.if_then(grows, likely=False):
            factor = v.exp(v.spread(builder.fsub(before, top)))
            v.store(builder.extract_element(factor, ir.Constant(INT, 0)), shrink)
        earlier = builder.fmul(v.load(FLOAT, total), v.load(FLOAT, shrink))
        v.store(builder.fadd(earlier, v.total(weight)), total)
        if is_scaled:
            weight = builder.fmul(weight, v.load(FLOATS, value_scales))
        v.store(weight, scores)
        return context.get_dummy_value()

    return types.void(width, *[types.int64] * 7), emit


@intrinsic
def prefetch(context, address, size):
    """Asks for `size` bytes at `address` to be brought near; pages lie anywhere, which no hardware can foresee."""

    def emit(context, builder, signature, arguments):
        v = Vectors(builder)
        address, size = arguments
        pointer = ir.PointerType(BYTE)
        kind = ir.FunctionType(ir.VoidType(), [pointer, INT, INT, INT])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        with v.loop(builder.sdiv(size, v.number(CACHE_LINE))) as loop:
            line = builder.inttoptr(v.at(address, v.times(loop.index, CACHE_LINE)), pointer)
            builder.call(function, [line, ir.Constant(INT, 0), ir.Constant(INT, 3), ir.Constant(INT, 1)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit
