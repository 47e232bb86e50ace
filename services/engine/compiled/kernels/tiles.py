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

from services.engine.compiled.kernels.forms import FORMS, PANEL, Panels, Weights, each_input
from services.engine.compiled.kernels.vector_ir import FLOATS, Vectors


@intrinsic(prefer_literal=True)
def tile(context, form, rows, panels, first, panel_bytes, x, x_stride, inputs, y, y_stride, adds):
    """`panels` neighbouring panels, `panel_bytes` apart from `first` on, for `rows` rows of x and y.

    Form, rows and panels are constants, the form by its place in `FORMS`. Addresses and strides are in bytes. `adds` is
    1 to add to y, 0 to overwrite it. Packed panels come from memory, so the tile asks for those that follow.
    """
    kind, height, width = FORMS[form.literal_value], rows.literal_value, panels.literal_value

    def emit(context, builder, signature, arguments):
        v = Vectors(builder)
        first, panel_bytes, x, x_stride, inputs, y, y_stride, adds = arguments[3:]
        bases = [v.at(first, v.times(panel_bytes, at)) for at in range(width)]
        x_rows = [v.at(x, v.times(x_stride, row)) for row in range(height)]
        sums = [[v.variable(v.zeros) for _ in range(width)] for _ in range(height)]

        def accumulate(index: ir.Value, weights: Weights) -> None:
            offset = v.times(index, 4)
            for row in range(height):
                value = v.spread_from(v.at(x_rows[row], offset))
                for slot, weight in zip(sums[row], weights, strict=True):
                    builder.store(v.fma(value, weight, builder.load(slot)), slot)

        ahead = None if kind == "float32" else v.times(panel_bytes, width)
        each_input(v, Panels(kind, bases, inputs, ahead), accumulate)
        is_adding = builder.icmp_signed("!=", adds, v.number(0))
        for row in range(height):
            target = v.at(y, v.times(y_stride, row))
            for panel in range(width):
                address = v.at(target, 4 * PANEL * panel)
                result = builder.load(sums[row][panel])
                total = builder.fadd(result, v.load(FLOATS, address))
                v.store(builder.select(is_adding, total, result), address)
        return context.get_dummy_value()

    return types.void(form, rows, panels, *[types.int64] * 8), emit


@intrinsic(prefer_literal=True)
def decode_panel(context, form, panel, panel_bytes, inputs, target):
    """Writes a panel as float32, `[inputs][16]`, and asks for the one that follows."""
    kind = FORMS[form.literal_value]

    def emit(context, builder, signature, arguments):
        v = Vectors(builder)
        panel, panel_bytes, inputs, target = arguments[1:]

        def keep(index: ir.Value, weights: Weights) -> None:
            v.store(weights[0], v.at(target, v.times(index, PANEL * 4)))

        each_input(v, Panels(kind, [panel], inputs, panel_bytes), keep)
        return context.get_dummy_value()

    return types.void(form, *[types.int64] * 4), emit
