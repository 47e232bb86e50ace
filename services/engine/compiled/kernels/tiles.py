"""The inner loops of a linear layer in floats: some rows times some panels of 16 outputs, accumulated in registers.

    y[row, output]  =  Σ over inputs, in order, by fused multiply-add   (+ what was in y)

A row's sum is one chain of fused multiply-adds from the first input to the last, whatever the number of rows and
panels beside it: this is what makes results independent of the batch, bit for bit. Tile sizes only decide how many
independent chains hide one another's latency. (Six rows by sixteen outputs fill AVX2's sixteen registers: BLIS, Van
Zee and van de Geijn 2015.)
"""

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from services.engine.compiled.kernels.forms import (
    FORMS,
    GROUP,
    PANEL,
    QUARTER,
    WHOLE,
    Group,
    ask_ahead,
    channel_scales,
    group_bytes,
    groups_at,
    weighted,
)
from services.engine.compiled.kernels.vector_ir import FLOATS, INTS, WIDTHS, Vectors


@intrinsic(prefer_literal=True)
def tile(context, form, rows, panels, first, panel_bytes, x, x_stride, inputs, y, y_stride, adds):
    """`panels` neighbouring panels of floats, `panel_bytes` apart from `first` on, for `rows` rows of x and y.

    Form, rows and panels are constants, the form by its place in `FORMS`. Addresses and strides are in bytes. `adds` is
    1 to add to y, 0 to overwrite it.
    """
    kind, height, width = FORMS[form.literal_value], rows.literal_value, panels.literal_value
    size = PANEL * WIDTHS[kind]

    def emit(context, builder, signature, arguments):
        v = Vectors(builder)
        first, panel_bytes, x, x_stride, inputs, y, y_stride, adds = arguments[3:]
        bases = [v.at(first, v.times(panel_bytes, at)) for at in range(width)]
        x_rows = [v.at(x, v.times(x_stride, row)) for row in range(height)]
        sums = [v.sums(width) for _ in range(height)]
        with v.loop(inputs) as loop:
            here = v.times(loop.index, size)
            if kind != "float32":
                for base in bases:
                    ask_ahead(v, v.at(base, here), v.times(panel_bytes, width), size)
            weights = [v.widened(kind, v.at(base, here)) for base in bases]
            for row in range(height):
                value = v.spread_from(v.at(x_rows[row], v.times(loop.index, 4)))
                for slot, weight in zip(sums[row], weights, strict=True):
                    builder.store(v.fma(value, weight, builder.load(slot)), slot)
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
def decode_panel(context, form, panel, inputs, target):
    """Writes a panel as float32, `[inputs][16]`."""
    kind = FORMS[form.literal_value]

    def emit(context, builder, signature, arguments):
        v = Vectors(builder)
        panel, inputs, target = arguments[1:]
        if kind in WHOLE:
            with v.loop(builder.sdiv(inputs, v.number(GROUP))) as loop:
                address = v.at(v.at(panel, groups_at(kind)), v.times(loop.index, group_bytes(kind)))
                _decode_group(v, panel, Group(kind, address), v.at(target, v.times(loop.index, GROUP * PANEL * 4)))
        else:
            with v.loop(inputs) as loop:
                weights = v.widened(kind, v.at(panel, v.times(loop.index, PANEL * WIDTHS[kind])))
                v.store(weights, v.at(target, v.times(loop.index, PANEL * 4)))
        return context.get_dummy_value()

    return types.void(form, *[types.int64] * 3), emit


def _decode_group(v: Vectors, panel: ir.Value, group: Group, target: ir.Value) -> None:
    scales = group.scales(v)
    one = v.floats(1.0)
    with v.rolled(4) as quarter:
        here = v.at(target, v.times(quarter, 2 * QUARTER * PANEL * 4))
        for number, codes in enumerate(group.codes(v, quarter)):
            pair = v.builder.bitcast(codes, INTS)
            low = v.builder.ashr(v.builder.shl(pair, v.ints(16)), v.ints(16))
            for parity, code in enumerate((low, v.builder.ashr(pair, v.ints(16)))):
                weight = weighted(v, group.form, v.builder.sitofp(code, FLOATS), one, scales)
                if group.form == "int8":
                    weight = v.builder.fmul(weight, channel_scales(v, panel))
                v.store(weight, v.at(here, (2 * number + parity) * PANEL * 4))
