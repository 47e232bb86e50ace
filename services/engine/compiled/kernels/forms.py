"""The forms in which a weight matrix is kept, each an encoding of one float32 matrix.

A matrix is cut into panels of 16 outputs, the numbers of a panel in the order in which the inner loop reads them. Three
forms hold floats:

    float32, float16, bfloat16   [inputs][16]

In the others numbers are whole and have scales. 32 inputs are a group; in it inputs go by pairs, `[16 pairs][16][2]`,
as the multiplication of pairs of 16-bit numbers takes them (see `fixed_point`):

    int8     16 scales float32, then per group [16 pairs][16][2] int8                      w = q · scale
    q8_0     per group 16 d float16, then [16 pairs][16][2] int8                           w = q · d
    q4_1     per group 16 d, 16 m float16, then [4][16][2] words                           w = q · d + m
    q4_0     per group 16 d float16, then [4][16][2] words                                 w = (q - 8) · d
             a word of 16 bits holds four pairs' numbers: of input 8 i + 2 t + parity the 4 bits from 4 t on
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llvmlite import ir

from services.engine.compiled.kernels.vector_ir import BYTE, FLOATS, INTS, LANES, QUADS, WIDTHS, WORDS, Vectors

PANEL = LANES
"""Outputs in a panel: one vector."""
GROUP = 32
"""Inputs that share a scale."""
QUARTER = GROUP // 2 // 4
"""Pairs of inputs in a quarter of a group."""
CACHE_LINE = 64

FORMS = ("float32", "float16", "bfloat16", "int8", "q8_0", "q4_1", "q4_0")
"""A form is known to compiled code by its place here."""
FLOAT32 = FORMS.index("float32")

WHOLE = ("int8", "q8_0", "q4_1", "q4_0")
"""Forms of whole numbers."""

FOUR_BITS = ("q4_1", "q4_0")

_SCALES = {"int8": 0, "q8_0": 1, "q4_1": 2, "q4_0": 1}
_CHANNEL_SCALES = PANEL * 4
"""Bytes before the groups of an int8 panel."""
_SIGNED = ir.VectorType(BYTE, 2 * LANES)


def group_bytes(form: str) -> int:
    """Of a group of inputs in a panel."""
    bits = 4 if form.startswith("q4") else 8
    return _SCALES[form] * PANEL * 2 + GROUP * PANEL * bits // 8


def panel_bytes(form: str, inputs: int) -> int:
    """Of one panel. `inputs` is a multiple of `GROUP` for whole numbers."""
    if form in WHOLE:
        return groups_at(form) + inputs // GROUP * group_bytes(form)
    return inputs * PANEL * WIDTHS[form]


def groups_at(form: str) -> int:
    """Where in a panel its groups begin."""
    return _CHANNEL_SCALES if form == "int8" else 0


@dataclass(frozen=True, slots=True)
class Group:
    """A group of a panel in memory, for emitted code."""

    form: str
    address: ir.Value

    def scales(self, v: Vectors) -> Sequence[ir.Value]:
        """As float32: d, and m where the form has it; nothing for int8, whose scales are the channel's."""
        return [v.widened("float16", v.at(self.address, at * PANEL * 2)) for at in range(_SCALES[self.form])]

    def quads(self, v: Vectors, eighth: int) -> Sequence[ir.Value]:
        """Of a form of 4 bits: the numbers of eight inputs as bytes, in each lane those of inputs 0, 4, 1, 5, then
        2, 6, 3, 7."""
        packed = v.load(INTS, v.at(self.address, _SCALES[self.form] * PANEL * 2 + eighth * 4 * PANEL))
        low, high = packed, v.builder.lshr(packed, v.ints(4))
        return [v.builder.bitcast(v.builder.and_(digits, v.ints(0x0F0F0F0F)), QUADS) for digits in (low, high)]

    def codes(self, v: Vectors, quarter: ir.Value) -> Iterator[ir.Value]:
        """For each pair of inputs of a quarter of the group, in order, the numbers `[16][2]` as words of 16 bits."""
        first = v.at(self.address, _SCALES[self.form] * PANEL * 2)
        if not self.form.startswith("q4"):
            first = v.at(first, v.times(quarter, QUARTER * 2 * PANEL))
            for pair in range(QUARTER):
                yield v.builder.sext(v.load(_SIGNED, v.at(first, pair * 2 * PANEL)), WORDS)
            return
        packed = v.load(WORDS, v.at(first, v.times(quarter, 4 * PANEL)))
        for digit in range(QUARTER):
            shifted = v.builder.lshr(packed, v.words(4 * digit)) if digit else packed
            yield v.builder.and_(shifted, v.words(15)) if digit < QUARTER - 1 else shifted


def weighted(v: Vectors, form: str, products: ir.Value, inputs: ir.Value, scales: Sequence[ir.Value]) -> ir.Value:
    """What a group adds to its outputs: `products` is Σ q · x of its inputs and `inputs` is Σ x, both as float32.

    For int8 the channel's scale is missing yet.
    """
    if form == "q4_1":
        return v.fma(products, scales[0], v.builder.fmul(scales[1], inputs))
    if form == "q4_0":
        return v.builder.fmul(v.fma(inputs, v.floats(-8.0), products), scales[0])
    return v.builder.fmul(products, scales[0]) if scales else products


def ask_ahead(v: Vectors, address: ir.Value, ahead: ir.Value, size: int) -> None:
    """For what lies `ahead` of `size` bytes. Panels are short, so hardware that follows a stream has hardly found it
    when it ends."""
    for line in range(0, size, CACHE_LINE):
        v.prefetch(v.at(v.at(address, ahead), line))


def channel_scales(v: Vectors, panel: ir.Value) -> ir.Value:
    """Of an int8 panel."""
    return v.load(FLOATS, panel)
