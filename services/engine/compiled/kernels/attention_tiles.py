"""The inner loops of attention over one page of 16 positions, for some rows (query heads) that read one KV head.

Keys lie transposed, `[head_dim][positions]`, so scores are a tile like a linear layer's: one chain of fused
multiply-adds per score, over the head's dimensions in order. Softmax is online (Milakov and Gimelshein 2018,
arXiv:1805.02867) and moves on page by page, so what a row computes depends on its context alone, however it is batched
or chunked.
"""

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from services.engine.compiled.kernels.forms import HALVES_OF_PANEL
from services.engine.compiled.kernels.vector_ir import BYTE, FLOAT, FLOATS, INT, Vectors

PAGE = 16
"""Positions per page. A block holds one page or several."""
MASKED = -1e30
"""The score of a position that may not be seen, and the largest score before any was seen."""
CACHE_LINE = 64
DTYPES = {4: "float32", 2: "float16", 1: "int8"}
"""Of the cache, by the bytes of a number."""


@intrinsic(prefer_literal=True)
def score_tile(context, width, rows, keys, pitch, queries, query_bytes, head_dim, scores):
    """Scores `[rows][16]` of `rows` queries, `query_bytes` apart, with a page of keys.

    A dimension's keys are `pitch` bytes from the next one's. Rows and the bytes of a number, `width`, are constants.
    """
    dtype, height, size = DTYPES[width.literal_value], rows.literal_value, width.literal_value

    def emit(context, builder, signature, arguments):
        v = Vectors(builder)
        keys, pitch, queries, query_bytes, head_dim, scores = arguments[2:]
        q_rows = [v.at(queries, v.times(query_bytes, row)) for row in range(height)]
        sums = [[v.variable(v.zeros) for _ in HALVES_OF_PANEL] for _ in range(height)]
        with v.loop(head_dim) as loop:
            line = v.at(keys, builder.mul(loop.index, pitch))
            key = [v.widened(dtype, v.at(line, 8 * half * size)) for half in HALVES_OF_PANEL]
            for row in range(height):
                query = v.spread_from(v.at(q_rows[row], v.times(loop.index, 4)))
                for half in HALVES_OF_PANEL:
                    slot = sums[row][half]
                    builder.store(v.fma(query, key[half], builder.load(slot)), slot)
        for row in range(height):
            for half in HALVES_OF_PANEL:
                v.store(builder.load(sums[row][half]), v.at(scores, 4 * PAGE * row + 32 * half))
        return context.get_dummy_value()

    return types.void(width, rows, *[types.int64] * 6), emit


@intrinsic(prefer_literal=True)
def value_tile(context, width, rows, values, pitch, weights, shrink, outputs, output_bytes):
    """For 16 dimensions: outputs · shrink + Σ over the page's positions, in order, of weight · value.

    `pitch` is the bytes from one position's values to the next one's; weights are `[rows][16]`, shrink `[rows]`.
    """
    dtype, height, size = DTYPES[width.literal_value], rows.literal_value, width.literal_value

    def emit(context, builder, signature, arguments):
        v = Vectors(builder)
        values, pitch, weights, shrink, outputs, output_bytes = arguments[2:]
        targets = [v.at(outputs, v.times(output_bytes, row)) for row in range(height)]
        sums = []
        for row in range(height):
            factor = v.spread_from(v.at(shrink, 4 * row))
            before = [v.load(FLOATS, v.at(targets[row], 32 * half)) for half in HALVES_OF_PANEL]
            sums.append([v.variable(builder.fmul(factor, part)) for part in before])
        with v.loop(v.number(PAGE)) as loop:
            line = v.at(values, builder.mul(loop.index, pitch))
            value = [v.widened(dtype, v.at(line, 8 * half * size)) for half in HALVES_OF_PANEL]
            for row in range(height):
                weight = v.spread_from(v.at(v.at(weights, 4 * PAGE * row), v.times(loop.index, 4)))
                for half in HALVES_OF_PANEL:
                    slot = sums[row][half]
                    builder.store(v.fma(weight, value[half], builder.load(slot)), slot)
        for row in range(height):
            for half in HALVES_OF_PANEL:
                v.store(builder.load(sums[row][half]), v.at(targets[row], 32 * half))
        return context.get_dummy_value()

    return types.void(width, rows, *[types.int64] * 6), emit


@intrinsic(prefer_literal=True)
def soften(context, width, scores, seen, largest, total, shrink, key_scales, value_scales):
    """One row's 16 scores into weights, in place; those from `seen` on are 0. Brings the row's largest score and total
    weight up to date; `shrink` is what earlier outputs are multiplied by. Numbers of one byte have scales."""
    is_scaled = width.literal_value == 1

    def emit(context, builder, signature, arguments):
        v = Vectors(builder)
        scores, seen, largest, total, shrink, key_scales, value_scales = arguments[1:]
        score = [v.load(FLOATS, v.at(scores, 32 * half)) for half in HALVES_OF_PANEL]
        if is_scaled:
            scales = [v.load(FLOATS, v.at(key_scales, 32 * half)) for half in HALVES_OF_PANEL]
            score = [builder.fmul(one, scale) for one, scale in zip(score, scales, strict=True)]
        is_seen = [v.first_lanes(seen, 8 * half) for half in HALVES_OF_PANEL]
        score = [builder.select(is_seen[half], score[half], v.floats(MASKED)) for half in HALVES_OF_PANEL]
        before = v.load(FLOAT, largest)
        top = v.spread(v.largest(v.larger(v.larger(score[0], score[1]), v.spread(before))))
        weight = [v.exp(builder.fsub(score[half], top)) for half in HALVES_OF_PANEL]
        weight = [builder.select(is_seen[half], weight[half], v.zeros) for half in HALVES_OF_PANEL]
        factor = builder.extract_element(v.exp(builder.fsub(v.spread(before), top)), ir.Constant(INT, 0))
        added = v.total(builder.fadd(weight[0], weight[1]))
        v.store(builder.fadd(builder.fmul(v.load(FLOAT, total), factor), added), total)
        v.store(builder.extract_element(top, ir.Constant(INT, 0)), largest)
        v.store(factor, shrink)
        for half in HALVES_OF_PANEL:
            kept = weight[half]
            if is_scaled:
                kept = builder.fmul(kept, v.load(FLOATS, v.at(value_scales, 32 * half)))
            v.store(kept, v.at(scores, 32 * half))
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
