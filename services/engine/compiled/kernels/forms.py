"""The forms in which a weight matrix is kept, each an encoding of one float32 matrix.

A matrix is cut into panels of 16 outputs, the numbers of a panel in the order in which the inner loop reads them:

    float32, float16, bfloat16   [inputs][16]
    int8                         16 scales float32, then [inputs][16] int8                w = q · scale
    q8_0     per 32 inputs       16 d float16, then [32][16] int8                         w = q · d
    q4_1     per 32 inputs       16 d, 16 m float16, then [16][16] bytes                  w = q · d + m
    q4_0     per 32 inputs       16 d float16, then [16][16] bytes                        w = (q - 8) · d
             a byte holds two inputs: the even one in its low half, the odd one in its high half

Every weight is decoded to the same float32 wherever it is used (in registers for few rows, into a scratch panel for
many) and inputs are always summed in their order, so results do not depend on which way was taken.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from services.engine.compiled.kernels.vector_ir import FLOATS, LANES, WIDTHS, Vectors

PANEL = LANES
"""Outputs in a panel: one vector."""
GROUP = 32
"""Inputs that share a scale in the q forms."""
CACHE_LINE = 64
UNROLLED = 4

FORMS = ("float32", "float16", "bfloat16", "int8", "q8_0", "q4_1", "q4_0")
"""A form is known to compiled code by its place here."""
FLOAT32 = FORMS.index("float32")

_GROUP_BYTES = {"q8_0": 32 + 512, "q4_1": 64 + 256, "q4_0": 32 + 256}

Weights = list[ir.Value]
"""One vector a panel: the weights of one input for the panel's outputs, as float32."""
Use = Callable[[ir.Value, Weights], None]
"""Called where code for one input is to be emitted, with the input's number and its weights."""


def panel_bytes(form: str, inputs: int) -> int:
    """Of one panel. `inputs` is a multiple of `GROUP` for the q forms."""
    if form in _GROUP_BYTES:
        return inputs // GROUP * _GROUP_BYTES[form]
    return inputs * PANEL * WIDTHS[form] + (PANEL * 4 if form == "int8" else 0)


@dataclass(frozen=True, slots=True)
class Panels:
    """Neighbouring panels in memory, for emitted code."""

    form: str
    bases: Sequence[ir.Value]
    inputs: ir.Value
    ahead: ir.Value | None = None
    """Bytes by which to ask for memory before it is read; None where the hardware sees it coming."""


def each_input(v: Vectors, panels: Panels, use: Use) -> None:
    """Emits the loop over all inputs, in order."""
    if panels.form in _GROUP_BYTES:
        with v.loop(v.builder.sdiv(panels.inputs, v.number(GROUP))) as loop:
            offset = v.times(loop.index, _GROUP_BYTES[panels.form])
            bases = [v.at(base, offset) for base in panels.bases]
            _ask_ahead(v, panels, bases, _GROUP_BYTES[panels.form])
            _group(v, panels.form, bases, v.times(loop.index, GROUP), use)
    else:
        _flat(v, panels, use)


def _ask_ahead(v: Vectors, panels: Panels, bases: Sequence[ir.Value], size: int) -> None:
    """What lies `ahead` of the `size` bytes at each base. Panels are short, so hardware that follows a stream has
    hardly found it when it ends."""
    if panels.ahead is not None:
        for base in bases:
            for line in range(0, size, CACHE_LINE):
                v.prefetch(v.at(v.at(base, panels.ahead), line))


def _flat(v: Vectors, panels: Panels, use: Use) -> None:
    bases, scales = list(panels.bases), None
    if panels.form == "int8":
        scales = [v.load(FLOATS, base) for base in bases]
        bases = [v.at(base, PANEL * 4) for base in bases]
    size = PANEL * WIDTHS[panels.form]
    with v.loop(panels.inputs) as loop:
        rows = [v.at(base, v.times(loop.index, size)) for base in bases]
        _ask_ahead(v, panels, rows, size)
        weights = [v.widened(panels.form, row) for row in rows]
        use(loop.index, weights if scales is None else _products(v, weights, scales))


def _group(v: Vectors, form: str, bases: list[ir.Value], first: ir.Value, use: Use) -> None:
    scales = [v.widened("float16", base) for base in bases]
    if form == "q8_0":
        with v.loop(v.number(GROUP)) as loop:
            row = v.at(v.times(loop.index, PANEL), 32)
            numbers = [v.widened("int8", v.at(base, row)) for base in bases]
            use(v.at(first, loop.index), _products(v, numbers, scales))
        return
    head = 64 if form == "q4_1" else 32
    offsets = [v.widened("float16", v.at(base, 32)) for base in bases]
    with v.loop(v.number(GROUP // 2 // UNROLLED)) as loop:
        for step in range(UNROLLED):
            row = v.at(v.times(loop.index, PANEL * UNROLLED), head + PANEL * step)
            pairs = [v.unsigned_bytes(v.at(base, row)) for base in bases]
            even = v.at(first, v.at(v.times(loop.index, 2 * UNROLLED), 2 * step))
            for parity in (0, 1):
                numbers = [_nibble(v, pair, parity) for pair in pairs]
                if form == "q4_1":
                    weights = [v.fma(n, d, m) for n, d, m in zip(numbers, scales, offsets, strict=True)]
                else:
                    weights = _products(v, [v.builder.fsub(number, v.floats(8.0)) for number in numbers], scales)
                use(v.at(even, parity), weights)


def _nibble(v: Vectors, pair: ir.Value, parity: int) -> ir.Value:
    bits = v.builder.lshr(pair, v.ints(4)) if parity else v.builder.and_(pair, v.ints(15))
    return v.builder.sitofp(bits, FLOATS)


def _products(v: Vectors, numbers: Weights, scales: Weights) -> Weights:
    return [v.builder.fmul(number, scale) for number, scale in zip(numbers, scales, strict=True)]
