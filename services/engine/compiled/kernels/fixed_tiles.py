"""The inner loop of a linear layer whose weights are whole numbers: some rows in fixed point times a panel.

    y[row, output]  =  Σ over groups, in order, of  s · (Σ q · X, scaled)     (+ what was in y)

Within a group sums are of whole numbers, hence exact; groups are added up in their order by fused multiply-add. So a
row's result depends neither on the rows beside it nor on the processor, bit for bit.
"""

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from services.engine.compiled.kernels.fixed_point import GROUP_PITCH, RECORD, SCALE_AT, SUM_AT, TILE_ROWS, pair, quads
from services.engine.compiled.kernels.forms import (
    FORMS,
    FOUR_BITS,
    GROUP,
    QUARTER,
    Group,
    ask_ahead,
    channel_scales,
    group_bytes,
    groups_at,
    weighted,
)
from services.engine.compiled.kernels.processor import HAS_VNNI, HAS_WIDE_REGISTERS
from services.engine.compiled.kernels.vector_ir import FLOATS, Vectors

HEIGHT = TILE_ROWS if HAS_WIDE_REGISTERS else TILE_ROWS // 2
"""Most rows at once: their sums stay in registers."""


@intrinsic(prefer_literal=True)
def fixed_tile(context, form, panel, panel_bytes, x, inputs, rows, y, y_stride, adds):
    """`rows` rows, at most a tile of x, times one panel. The form is a constant; addresses, strides in bytes.

    `adds` is 1 to add to y, 0 to overwrite it. Panels come from memory, so the tile asks for what follows.
    """
    kind = FORMS[form.literal_value]

    def emit(context, builder, signature, arguments):
        v = Vectors(builder)
        panel, panel_bytes, x, inputs, rows, y, y_stride, adds = arguments[1:]
        groups = builder.sdiv(inputs, v.number(GROUP))
        is_adding = builder.icmp_signed("!=", adds, v.number(0))

        def some_rows(first: ir.Value, height: int) -> None:
            sums = _sums(v, kind, (panel, panel_bytes, groups), v.at(x, v.times(first, RECORD)), height)
            for row, total in enumerate(sums):
                address = v.at(y, builder.mul(v.at(first, row), y_stride))
                added = builder.fadd(total, v.load(FLOATS, address))
                v.store(builder.select(is_adding, added, total), address)

        v.by_rows(rows, HEIGHT, some_rows)
        return context.get_dummy_value()

    return types.void(form, *[types.int64] * 8), emit


@intrinsic(prefer_literal=True)
def lone_tile(context, form, panel, panel_bytes, x, inputs, y, adds):
    """As `fixed_tile`, for a row that is the only one and lies there by bytes too (see `fix_row`)."""
    kind = FORMS[form.literal_value]
    is_by_bytes = HAS_VNNI and kind in FOUR_BITS

    def emit(context, builder, signature, arguments):
        v = Vectors(builder)
        panel, panel_bytes, x, inputs, y, adds = arguments[1:]
        where = (panel, panel_bytes, builder.sdiv(inputs, v.number(GROUP)))
        total = _sum_by_bytes(v, kind, where, x) if is_by_bytes else _sums(v, kind, where, x, 1)[0]
        added = builder.fadd(total, v.load(FLOATS, y))
        v.store(builder.select(builder.icmp_signed("!=", adds, v.number(0)), added, total), y)
        return context.get_dummy_value()

    return types.void(form, *[types.int64] * 6), emit


def _sum_by_bytes(v: Vectors, form: str, where: tuple[ir.Value, ...], x: ir.Value) -> ir.Value:
    """Σ q · X as 256 · Σ q · high + Σ q · low, of four inputs at a time: half as many instructions."""
    builder = v.builder
    panel, panel_bytes, groups = where
    total, size = v.variable(v.zeros), group_bytes(form)
    with v.loop(groups) as loop:
        address = v.at(panel, v.times(loop.index, size))
        ask_ahead(v, address, panel_bytes, size)
        group, record = Group(form, address), v.at(x, v.times(loop.index, GROUP_PITCH))
        low, high = v.ints(0), v.ints(0)
        for eighth in range(GROUP // 8):
            for half, codes in enumerate(group.quads(v, eighth)):
                lows, highs = quads(v, record, 2 * eighth + half)
                low, high = v.add_byte_products(low, lows, codes), v.add_byte_products(high, codes, highs)
        products = builder.sitofp(builder.add(low, builder.shl(high, v.ints(8))), FLOATS)
        value = weighted(v, form, products, v.spread_from(v.at(record, SUM_AT)), group.scales(v))
        builder.store(v.fma(value, v.spread_from(v.at(record, SCALE_AT)), builder.load(total)), total)
    return builder.load(total)


def _sums(v: Vectors, form: str, where: tuple[ir.Value, ...], x: ir.Value, height: int) -> list[ir.Value]:
    builder = v.builder
    panel, panel_bytes, groups = where
    sums = v.sums(height)
    size = group_bytes(form)
    with v.loop(groups) as loop:
        address = v.at(v.at(panel, groups_at(form)), v.times(loop.index, size))
        ask_ahead(v, address, panel_bytes, size)
        group, records = Group(form, address), v.at(x, v.times(loop.index, GROUP_PITCH))
        products = [v.variable(v.ints(0)) for _ in range(height)]
        # A loop that stays one: unrolled, its numbers would no longer fit into sixteen registers.
        with v.rolled(4) as quarter:
            here = v.at(records, v.times(quarter, 4 * QUARTER))
            for number, codes in enumerate(group.codes(v, quarter)):
                for row, slot in enumerate(products):
                    numbers = pair(v, v.at(here, RECORD * row), number)
                    builder.store(v.add_products(builder.load(slot), codes, numbers), slot)
        scales = group.scales(v)
        for row, slot in enumerate(sums):
            record = v.at(records, RECORD * row)
            value = builder.sitofp(builder.load(products[row]), FLOATS)
            value = weighted(v, form, value, v.spread_from(v.at(record, SUM_AT)), scales)
            builder.store(v.fma(value, v.spread_from(v.at(record, SCALE_AT)), builder.load(slot)), slot)
    totals = [builder.load(slot) for slot in sums]
    return totals if form != "int8" else [builder.fmul(total, channel_scales(v, panel)) for total in totals]
