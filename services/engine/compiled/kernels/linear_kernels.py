"""The kernels of a linear layer, each compiled by itself for the form of its weights and called by address."""

from functools import cache

from services.engine.compiled.kernels.fixed_point import GROUP_PITCH, TILE_ROWS
from services.engine.compiled.kernels.fixed_tiles import fixed_tile, lone_tile
from services.engine.compiled.kernels.forms import FLOAT32, FORMS, GROUP, PANEL
from services.engine.compiled.kernels.tiles import decode_panel, tile
from services.engine.jit import native

FEW = 4
"""Most rows that decode 16-bit weights in registers, and that each thread makes ready for itself."""
MOST_ROWS = 6
"""Rows of the largest tile of floats."""


def _fixed(form, panels, size, count, inputs, x, rows, y, y_stride, adds):
    """Any number of rows in fixed point over `count` panels: a tile of rows stays near while all panels pass it."""
    if rows == 1:
        for at in range(count):
            lone_tile(form, panels + at * size, size, x, inputs, y + at * PANEL * 4, adds)
        return
    row = 0
    while row < rows:
        source, target = x + row // TILE_ROWS * (inputs // GROUP) * GROUP_PITCH, y + row * y_stride
        height = min(TILE_ROWS, rows - row)
        for at in range(count):
            fixed_tile(form, panels + at * size, size, source, inputs, height, target + at * PANEL * 4, y_stride, adds)
        row += TILE_ROWS


def _few(form, panels, size, count, inputs, x, x_stride, rows, y, y_stride, adds):
    """Up to `FEW` rows over `count` panels, side by side where that gives enough independent sums."""
    at = 0
    while at < count:
        panel, target = panels + at * size, y + at * PANEL * 4
        left = count - at
        if rows == 1 and left >= 4:
            tile(form, 1, 4, panel, size, x, x_stride, inputs, target, y_stride, adds)
            at += 4
        elif rows == 1:
            tile(form, 1, 1, panel, size, x, x_stride, inputs, target, y_stride, adds)
            at += 1
        elif rows == 2 and left >= 2:
            tile(form, 2, 2, panel, size, x, x_stride, inputs, target, y_stride, adds)
            at += 2
        elif rows == 2:
            tile(form, 2, 1, panel, size, x, x_stride, inputs, target, y_stride, adds)
            at += 1
        elif rows == 3:
            tile(form, 3, 1, panel, size, x, x_stride, inputs, target, y_stride, adds)
            at += 1
        else:
            tile(form, 4, 1, panel, size, x, x_stride, inputs, target, y_stride, adds)
            at += 1


def _decode(form, panels, size, count, inputs, target):
    """`count` panels into float32, one after the other."""
    for at in range(count):
        decode_panel(form, panels + at * size, inputs, target + at * inputs * PANEL * 4)


def _many(form, panel, inputs, x, x_stride, rows, y, y_stride, adds):
    """All rows over one panel of float32, in tiles of nearly equal height."""
    row = 0
    while row < rows:
        left = rows - row
        source, target = x + row * x_stride, y + row * y_stride
        if left == 7 or left == 8 or left == 4:
            tile(form, 4, 1, panel, 0, source, x_stride, inputs, target, y_stride, adds)
            row += 4
        elif left >= 6:
            tile(form, 6, 1, panel, 0, source, x_stride, inputs, target, y_stride, adds)
            row += 6
        elif left == 5:
            tile(form, 5, 1, panel, 0, source, x_stride, inputs, target, y_stride, adds)
            row += 5
        elif left == 3:
            tile(form, 3, 1, panel, 0, source, x_stride, inputs, target, y_stride, adds)
            row += 3
        elif left == 2:
            tile(form, 2, 1, panel, 0, source, x_stride, inputs, target, y_stride, adds)
            row += 2
        else:
            tile(form, 1, 1, panel, 0, source, x_stride, inputs, target, y_stride, adds)
            row += 1


@cache
def fixed_rows(form: str) -> int:
    """Address of `(panels, panel_bytes, count, inputs, x, rows, y, y_stride, adds)`, for a form of whole numbers."""
    return native(_fixed, FORMS.index(form), 9)


@cache
def few_rows(form: str) -> int:
    """Address of `(panels, panel_bytes, count, inputs, x, x_stride, rows, y, y_stride, adds)`, for a form of floats."""
    return native(_few, FORMS.index(form), 10)


@cache
def decode_panels(form: str) -> int:
    """Address of `(panels, panel_bytes, count, inputs, target)`."""
    return native(_decode, FORMS.index(form), 5)


@cache
def many_rows() -> int:
    """Address of `(panel, inputs, x, x_stride, rows, y, y_stride, adds)`, for a panel of float32."""
    return native(_many, FLOAT32, 8)
