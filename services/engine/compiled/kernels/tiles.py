"""The inner loops of a linear layer: some rows times some panels of 16 outputs, accumulated in registers.

    y[row, output]  =  Σ over inputs, in order, by fused multiply-add   (+ what was in y)

A row's sum is one chain of fused multiply-adds from the first input to the last, whatever the number of rows and
panels beside it: this is what makes results independent of the batch, bit for bit. Tile sizes only decide how many
independent chains hide one another's latency. (Six rows by sixteen outputs fill AVX2's sixteen registers: BLIS, Van
Zee and van de Geijn 2015.)
"""

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from services.engine.compiled.kernels.forms import FORMS, HALVES_OF_PANEL, PANEL, Panels, Weights, each_input
from services.engine.compiled.kernels.vector_ir import FLOATS, Vectors


@intrinsic(prefer_literal=True)
def tile(context, form, rows, panels, first, panel_bytes, x, x_stride, inputs, y, y_stride, adds):
    """`panels` neighbouring panels, `panel_bytes` apart from `first` on, for `rows` rows of x and y.

    Form, rows and panels are constants, the form by its place in `FORMS`. Addresses and strides are in bytes. `adds` is
    1 to add to y, 0 to overwrite it.
    """
    kind, height, width = FORMS[form.literal_value], rows.literal_value, panels.literal_value

    def emit(context, builder, signature, arguments):
        v = Vectors(builder)
        first, panel_bytes, x, x_stride, inputs, y, y_stride, adds = arguments[3:]
        bases = [v.at(first, v.times(panel_bytes, at)) for at in range(width)]
        x_rows = [v.at(x, v.times(x_stride, row)) for row in range(height)]
        sums = [[[v.variable(v.zeros) for _ in HALVES_OF_PANEL] for _ in range(width)] for _ in range(height)]

        def accumulate(index: ir.Value, weights: Weights) -> None:
            offset = v.times(index, 4)
            for row in range(height):
                value = v.spread_from(v.at(x_rows[row], offset))
                for panel in range(width):
                    for half in HALVES_OF_PANEL:
                        slot = sums[row][panel][half]
                        builder.store(v.fma(value, weights[panel][half], builder.load(slot)), slot)

        each_input(v, Panels(kind, bases, inputs), accumulate)
        is_adding = builder.icmp_signed("!=", adds, v.number(0))
        for row in range(height):
            target = v.at(y, v.times(y_stride, row))
            for panel in range(width):
                for half in HALVES_OF_PANEL:
                    address = v.at(target, 4 * (PANEL * panel + 8 * half))
                    result = builder.load(sums[row][panel][half])
                    total = builder.fadd(result, v.load(FLOATS, address))
                    v.store(builder.select(is_adding, total, result), address)
        return context.get_dummy_value()

    return types.void(form, rows, panels, *[types.int64] * 8), emit


@intrinsic(prefer_literal=True)
def decode_panel(context, form, panel, inputs, target):
    """Writes a panel as float32, `[inputs][16]`."""
    kind = FORMS[form.literal_value]

    def emit(context, builder, signature, arguments):
        v = Vectors(builder)
        panel, inputs, target = arguments[1:]

        def keep(index: ir.Value, weights: Weights) -> None:
            row = v.at(target, v.times(index, PANEL * 4))
            for half in HALVES_OF_PANEL:
                v.store(weights[0][half], v.at(row, 32 * half))

        each_input(v, Panels(kind, [panel], inputs), keep)
        return context.get_dummy_value()

    return types.void(form, *[types.int64] * 3), emit
