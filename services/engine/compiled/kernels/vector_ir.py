"""The few vector operations the kernels are made of, emitted as LLVM IR: sixteen float32 lanes.

Sixteen are one AVX-512 register; where registers are shorter, LLVM takes several, and the bits are the same.

Owns the spelling of each operation, so that the kernels read like arithmetic. Addresses are 64-bit integers, in bytes.
The order of every sum is written out here and never left to the optimizer: equal inputs give equal bits.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llvmlite import ir
from numba.core import cgutils

from services.engine.compiled.kernels.processor import HAS_AVX2, HAS_AVX512

LANES = 16
FLOAT, HALF = ir.FloatType(), ir.HalfType()
BYTE, SHORT, INT, LONG = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
FLOATS, HALVES = ir.VectorType(FLOAT, LANES), ir.VectorType(HALF, LANES)
BYTES, SHORTS, INTS = ir.VectorType(BYTE, LANES), ir.VectorType(SHORT, LANES), ir.VectorType(INT, LANES)
WORDS = ir.VectorType(SHORT, 2 * LANES)
"""A pair of 16-bit numbers in each lane."""

QUADS = ir.VectorType(BYTE, 4 * LANES)
"""Four bytes in each lane."""

WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
"""Bytes of a stored number."""

_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_EXP_POLYNOMIAL = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_EXP_LOWEST, _EXP_HIGHEST = -87.0, 88.0
"""Beyond these the result would be subnormal, or overflow; what is computed is e^-87 = 1.6e-38 or e^88 = 1.7e38."""


class Vectors:
    """Emits at the end of `builder`'s block."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder = builder

    # --- addresses

    def number(self, value: int) -> ir.Constant:
        return ir.Constant(LONG, value)

    def at(self, base: ir.Value, offset: ir.Value | int) -> ir.Value:
        return self.builder.add(base, self.number(offset) if isinstance(offset, int) else offset)

    def times(self, value: ir.Value, factor: int) -> ir.Value:
        return self.builder.mul(value, self.number(factor))

    # --- memory

    def load(self, kind: ir.Type, address: ir.Value) -> ir.Value:
        loaded = self.builder.load(self.builder.inttoptr(address, ir.PointerType(kind)))
        loaded.align = 1
        return loaded

    def store(self, value: ir.Value, address: ir.Value) -> None:
        stored = self.builder.store(value, self.builder.inttoptr(address, ir.PointerType(value.type)))
        stored.align = 1

    def widened(self, dtype: str, address: ir.Value) -> ir.Value:
        """As many stored numbers as there are lanes, as float32."""
        if dtype == "float32":
            return self.load(FLOATS, address)
        if dtype == "float16":
            return self.builder.fpext(self.load(HALVES, address), FLOATS)
        if dtype == "bfloat16":
            bits = self.builder.zext(self.load(SHORTS, address), INTS)
            return self.builder.bitcast(self.builder.shl(bits, self.ints(16)), FLOATS)
        return self.builder.sitofp(self.builder.sext(self.load(BYTES, address), INTS), FLOATS)

    def prefetch(self, address: ir.Value) -> None:
        """Asks for the cache line at this address, for the second-level cache."""
        pointer = ir.PointerType(BYTE)
        kind = ir.FunctionType(ir.VoidType(), [pointer, INT, INT, INT])
        function = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        hints = [ir.Constant(INT, number) for number in (0, 2, 1)]
        self.builder.call(function, [self.builder.inttoptr(address, pointer), *hints])

    # --- lanes

    def ints(self, value: int) -> ir.Constant:
        return ir.Constant(INTS, [value] * LANES)

    def words(self, value: int) -> ir.Constant:
        return ir.Constant(WORDS, [value] * 2 * LANES)

    def floats(self, value: float) -> ir.Constant:
        return ir.Constant(FLOATS, [value] * LANES)

    @property
    def zeros(self) -> ir.Constant:
        return self.floats(0.0)

    def spread(self, scalar: ir.Value) -> ir.Value:
        """The scalar in every lane."""
        kind = FLOATS if scalar.type == FLOAT else INTS
        empty = ir.Constant(kind, ir.Undefined)
        first = self.builder.insert_element(empty, scalar, ir.Constant(INT, 0))
        return self.builder.shuffle_vector(first, empty, self.ints(0))

    def spread_from(self, address: ir.Value) -> ir.Value:
        return self.spread(self.load(FLOAT, address))

    def spread_quad(self, quad: ir.Value) -> ir.Value:
        """The four bytes, as a number of 32 bits, in every lane."""
        return self.builder.bitcast(self.spread(quad), QUADS)

    def spread_pair(self, pair: ir.Value) -> ir.Value:
        """The pair of 16-bit numbers, as one of 32 bits, in every lane."""
        return self.builder.bitcast(self.spread(pair), WORDS)

    def first_lanes(self, count: ir.Value) -> ir.Value:
        """Which lanes are among the first `count`."""
        numbers = ir.Constant(INTS, list(range(LANES)))
        return self.builder.icmp_signed("<", numbers, self.spread(self.builder.trunc(count, INT)))

    # --- arithmetic

    def fma(self, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        return self._call("llvm.fma", x, y, z)

    def larger(self, x: ir.Value, y: ir.Value) -> ir.Value:
        """Of each lane. A NaN in `x` gives `y`, one in `y` gives NaN."""
        return self.builder.select(self.builder.fcmp_ordered(">", x, y), x, y)

    def total(self, vector: ir.Value) -> ir.Value:
        """Sum of the lanes: first of those eight apart, then four, two, and one."""
        return self._fold(vector, self.builder.fadd)

    def largest(self, vector: ir.Value) -> ir.Value:
        return self._fold(vector, self.larger)

    def larger_int(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.builder.select(self.builder.icmp_signed(">", x, y), x, y)

    def largest_int(self, vector: ir.Value) -> ir.Value:
        return self._fold(vector, self.larger_int)

    def total_int(self, vector: ir.Value) -> ir.Value:
        return self._fold(vector, self.builder.add)

    def nearest(self, x: ir.Value) -> ir.Value:
        """The nearest whole numbers, ties to even ones; any number for NaN and what is beyond the range of numbers."""
        kind = ir.FunctionType(INTS, [FLOATS])
        name = f"llvm.lrint.v{LANES}i32.v{LANES}f32"
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), [x])

    def add_products(self, total: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
        """In each lane x₀ · y₀ + x₁ · y₁ of two pairs of 16-bit numbers, added to `total`; nothing may overflow.

        Where there are instructions for it LLVM makes one of both steps (VNNI).
        """
        builder = self.builder
        if HAS_AVX512:
            kind = ir.FunctionType(INTS, [WORDS, WORDS])
            multiply = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.pmaddw.d.512")
            return builder.add(total, builder.call(multiply, [x, y]))
        if HAS_AVX2:
            return builder.add(total, self._products_by_halves(x, y))
        x, y = builder.bitcast(x, INTS), builder.bitcast(y, INTS)
        high = builder.mul(builder.ashr(x, self.ints(16)), builder.ashr(y, self.ints(16)))
        low = [builder.ashr(builder.shl(each, self.ints(16)), self.ints(16)) for each in (x, y)]
        return builder.add(total, builder.add(high, builder.mul(*low)))

    def add_byte_products(self, total: ir.Value, positive: ir.Value, signed: ir.Value) -> ir.Value:
        """In each lane Σ x · y of four bytes, x from 0 to 255 and y from -128 to 127, added to `total`. For processors
        with VNNI."""
        kind = ir.FunctionType(INTS, [INTS, QUADS, QUADS])
        multiply = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.x86.avx512.vpdpbusd.512")
        return self.builder.call(multiply, [total, positive, signed])

    def _products_by_halves(self, x: ir.Value, y: ir.Value) -> ir.Value:
        half_words, half_ints = ir.VectorType(SHORT, LANES), ir.VectorType(INT, LANES // 2)
        kind = ir.FunctionType(half_ints, [half_words, half_words])
        multiply = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.x86.avx2.pmadd.wd")
        halves = []
        for first in (0, LANES):
            order = ir.Constant(INTS, list(range(first, first + LANES)))
            operands = [self.builder.shuffle_vector(each, each, order) for each in (x, y)]
            halves.append(self.builder.call(multiply, operands))
        return self.builder.shuffle_vector(*halves, ir.Constant(INTS, list(range(LANES))))

    def exp(self, x: ir.Value) -> ir.Value:
        """e^x within 2 units in the last place; e^0 is exactly 1, NaN stays NaN, very small and large x are cut.

        Cody and Waite's reduction to |r| <= ln 2 / 2, then the minimax polynomial of the Cephes library (`expf`).
        """
        builder = self.builder
        x = builder.select(builder.fcmp_ordered("<", x, self.floats(_EXP_LOWEST)), self.floats(_EXP_LOWEST), x)
        x = builder.select(builder.fcmp_ordered(">", x, self.floats(_EXP_HIGHEST)), self.floats(_EXP_HIGHEST), x)
        turns = self._call("llvm.nearbyint", builder.fmul(x, self.floats(_LOG2_E)))
        rest = self.fma(turns, self.floats(-_LN2_HIGH), x)
        rest = self.fma(turns, self.floats(-_LN2_LOW), rest)
        value = self.floats(_EXP_POLYNOMIAL[0])
        for coefficient in _EXP_POLYNOMIAL[1:]:
            value = self.fma(value, rest, self.floats(coefficient))
        value = self.fma(value, builder.fmul(rest, rest), builder.fadd(rest, self.floats(1.0)))
        exponent = builder.shl(builder.add(builder.fptosi(turns, INTS), self.ints(127)), self.ints(23))
        return builder.fmul(value, builder.bitcast(exponent, FLOATS))

    # --- loops and accumulators

    def loop(self, count: ir.Value):
        """A context manager; its value's `index` runs from 0 to count - 1."""
        return cgutils.for_range(self.builder, count, intp=LONG)

    @contextmanager
    def rolled(self, count: int) -> Iterator[ir.Value]:
        """As `loop`, for a constant count, of which LLVM is told not to unroll it."""
        builder = self.builder
        before, body = builder.block, builder.append_basic_block("rolled")
        builder.branch(body)
        builder.position_at_end(body)
        index = builder.phi(LONG)
        index.add_incoming(self.number(0), before)
        yield index
        following = builder.add(index, self.number(1))
        index.add_incoming(following, builder.block)
        after = builder.append_basic_block("rolled_done")
        back = builder.cbranch(builder.icmp_signed("<", following, self.number(count)), body, after)
        back.set_metadata("llvm.loop", _not_unrolled(builder.module))
        builder.position_at_end(after)

    def by_rows(self, rows: ir.Value, most: int, emit: Callable[[ir.Value, int], None]) -> None:
        """Emits code for any number of rows, out of code for 1 to `most` rows at once: `emit(first row, how many)`.

        As few at once as make the number of turns the same, so that no turn has much fewer than the others.
        """
        builder = self.builder
        turns = builder.sdiv(self.at(rows, most - 1), self.number(most))
        row = self.variable(self.number(0))
        with self.loop(turns) as loop:
            first = builder.load(row)
            left, turns_left = builder.sub(rows, first), builder.sub(turns, loop.index)
            height = builder.sdiv(builder.sub(self.at(left, turns_left), self.number(1)), turns_left)
            builder.store(builder.add(first, height), row)
            done = builder.append_basic_block("rows_done")
            choice = builder.switch(height, done)
            for count in range(1, most + 1):
                block = builder.append_basic_block(f"rows_{count}")
                choice.add_case(self.number(count), block)
                builder.position_at_end(block)
                emit(first, count)
                builder.branch(done)
            builder.position_at_end(done)

    def variable(self, value: ir.Value) -> ir.Value:
        return cgutils.alloca_once_value(self.builder, value)

    def sums(self, count: int) -> list[ir.Value]:
        """Variables of zeros."""
        return [self.variable(self.zeros) for _ in range(count)]

    def _fold(self, vector, combine):
        for width in (8, 4, 2, 1):
            order = ir.Constant(INTS, [(lane + width) % LANES for lane in range(LANES)])
            vector = combine(vector, self.builder.shuffle_vector(vector, vector, order))
        return self.builder.extract_element(vector, ir.Constant(INT, 0))

    def _call(self, name: str, *operands: ir.Value) -> ir.Value:
        kind = ir.FunctionType(FLOATS, [FLOATS] * len(operands))
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"{name}.v{LANES}f32")
        return self.builder.call(function, operands)


def _not_unrolled(module: ir.Module) -> ir.MDValue:
    """What tells LLVM so of one loop: metadata that names itself first, and by that is the loop's own."""
    wish = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
    loop = ir.MDValue(module, [wish], name=str(len(module.metadata)))
    loop.operands = (loop, wish)
    return loop
