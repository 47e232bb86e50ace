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

from services.engine.compiled.kernels.vector_ir import FLOATS, WIDTHS, Vectors

PANEL = 16
"""Outputs in a panel: two registers of eight lanes."""
GROUP = 32
"""Inputs that share a scale in the q forms."""
HALVES_OF_PANEL = (0, 1)

FORMS = ("float32", "float16", "bfloat16", "int8", "q8_0", "q4_1", "q4_0")
"""A form is known to compiled code by its place here."""
FLOAT32 = FORMS.index("float32")

_GROUP_BYTES = {"q8_0": 32 + 512, "q4_1": 64 + 256, "q4_0": 32 + 256}

Weights = list[list[ir.Value]]
"""`[panel][half]`: the weights of one input for the panels' outputs, as float32 lanes."""
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


def each_input(v: Vectors, panels: Panels, use: Use) -> None:
    """Emits the loop over all inputs, in order."""
    if panels.form in _GROUP_BYTES:
        with v.loop(v.builder.sdiv(panels.inputs, v.number(GROUP))) as loop:
            offset = v.times(loop.index, _GROUP_BYTES[panels.form])
            _group(v, panels.form, [v.at(base, offset) for base in panels.bases], v.times(loop.index, GROUP), use)
    else:
        _flat(v, panels, use)


def _flat(v: Vectors, panels: Panels, use: Use) -> None:
    bases, scales = list(panels.bases), None
    if panels.form == "int8":
        scales = [[v.load(FLOATS, v.at(base, 32 * half)) for half in HALVES_OF_PANEL] for base in bases]
        bases = [v.at(base, PANEL * 4) for base in bases]
    width = WIDTHS[panels.form]
    with v.loop(panels.inputs) as loop:
        row = v.times(loop.index, PANEL * width)
        weights = [
            [v.widened(panels.form, v.at(v.at(base, row), 8 * half * width)) for half in HALVES_OF_PANEL]
            for base in bases
        ]
        if scales is not None:
            weights = _products(v, weights, scales)
        use(loop.index, weights)


def _group(v: Vectors, form: str, bases: list[ir.Value], first: ir.Value, use: Use) -> None:
    scales = [[v.widened("float16", v.at(base, 16 * half)) for half in HALVES_OF_PANEL] for base in bases]
    if form == "q8_0":
        with v.loop(v.number(GROUP)) as loop:
            row = v.times(loop.index, PANEL)
            numbers = [
                [v.widened("int8", v.at(v.at(base, row), 32 + 8 * half)) for half in HALVES_OF_PANEL] for base in bases
            ]
            use(v.at(first, loop.index), _products(v, numbers, scales))
        return
    head = 64 if form == "q4_1" else 32
    offsets = [[v.widened("float16", v.at(base, 32 + 16 * half)) for half in HALVES_OF_PANEL] for base in bases]
    with v.loop(v.number(GROUP // 2)) as loop:
        row = v.at(v.times(loop.index, PANEL), head)
        pairs = [[v.unsigned_bytes(v.at(v.at(base, row), 8 * half)) for half in HALVES_OF_PANEL] for base in bases]
        even = v.at(first, v.times(loop.index, 2))
        for parity in (0, 1):
            numbers = [[_nibble(v, pair, parity) for pair in panel] for panel in pairs]
            if form == "q4_1":
                weights = [
                    [v.fma(n, d, m) for n, d, m in zip(*panel, strict=True)]
                    for panel in zip(numbers, scales, offsets, strict=True)
                ]
            else:
                centred = [[v.builder.fsub(number, v.floats(8.0)) for number in panel] for panel in numbers]
                weights = _products(v, centred, scales)
            use(v.at(even, parity), weights)


def _nibble(v: Vectors, pair: ir.Value, parity: int) -> ir.Value:
    bits = v.builder.lshr(pair, v.ints(4)) if parity else v.builder.and_(pair, v.ints(15))
    return v.builder.sitofp(bits, FLOATS)


def _products(v: Vectors, numbers: Weights, scales: Weights) -> Weights:
    return [
        [v.builder.fmul(number, scale) for number, scale in zip(*panel, strict=True)]
        for panel in zip(numbers, scales, strict=True)
    ]
