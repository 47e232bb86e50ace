"""Kernels called by themselves, for tests."""

from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from services.engine.compiled.kernels.fixed_point import fix_row, fixed_bytes
from services.engine.compiled.kernels.forms import FORMS, PANEL, WHOLE
from services.engine.compiled.kernels.linear import MATRIX, Job, Rows, linear, scratch_bytes
from services.engine.compiled.kernels.team import COUNTER
from services.engine.compiled.kernels.turns import Turn
from services.engine.compiled.packing import packed
from services.engine.compiled.weights import kernels_of
from services.engine.jit import outer
from services.modelfiles.stored_tensor import Form, StoredTensor

Floats = npt.NDArray[np.float32]


@outer
def _fix(x: Any, rows: Any) -> None:
    for row in range(x.shape[0]):
        fix_row(np.int64(x[row].ctypes.data), x.shape[1], np.int64(rows.ctypes.data), row, x.shape[0])


@outer
def _run(matrix: Any, x: Any, y: Any, counter: Any, scratch: Any, adds: int) -> None:
    source = Rows(np.int64(x.ctypes.data), np.int64(x.strides[0]), np.int64(y.shape[0]))
    target = Rows(np.int64(y.ctypes.data), np.int64(y.strides[0]), np.int64(y.shape[0]))
    turn = Turn(np.int64(counter.ctypes.data), np.int64(0), np.int64(1), np.int64(0), np.int64(0))
    linear(matrix[0], source, target, Job(turn, np.int64(scratch.ctypes.data), adds))


class Multiplier:
    """A packed matrix and its kernels."""

    def __init__(self, tensor: StoredTensor, form: str) -> None:
        self._panels = packed(tensor, form)
        self._form = form
        self.outputs, self.inputs = tensor.shape
        self._matrix = np.zeros(1, MATRIX)
        self._matrix[0] = (
            self._panels.ctypes.data,
            self._panels.shape[1],
            len(self._panels) * PANEL,
            self.inputs,
            *kernels_of(form),
        )
        self._scratch = np.zeros(scratch_bytes(self.inputs), np.uint8)

    def __call__(self, x: Floats, onto: Floats | None = None) -> Floats:
        """`[rows, outputs]`; added to `onto` if given."""
        width = len(self._panels) * PANEL
        y = np.full((len(x), width), np.nan, np.float32)
        if onto is not None:
            y[:, : self.outputs] = onto
        _run(
            self._matrix,
            self._as_read(x),
            y,
            np.zeros((2, COUNTER), np.int64),
            self._scratch,
            int(onto is not None),
        )
        return y[:, : self.outputs]

    def _as_read(self, x: Floats) -> npt.NDArray[Any]:
        return fixed(x) if self._form in WHOLE else np.ascontiguousarray(x)


def fixed(x: Floats) -> npt.NDArray[np.uint8]:
    """Rows in fixed point, `[1, bytes]`."""
    rows = np.full((1, fixed_bytes(*x.shape)), 255, np.uint8)
    _fix(np.ascontiguousarray(x), rows)
    return rows


def stored(rows: Floats, form: str) -> StoredTensor:
    """A matrix as a file would have it, from which it is packed into `form`."""
    if form in ("q4_0", "q4_1", "q8_0"):
        blocks = quantize(rows, GGMLQuantizationType[form.upper()])
        return StoredTensor(Form(form), rows.shape, blocks)
    if form == "float16":
        return StoredTensor(Form.FLOAT16, rows.shape, rows.astype(np.float16))
    if form == "bfloat16":
        return StoredTensor(Form.BFLOAT16, rows.shape, (rows.view(np.uint32) >> np.uint32(16)).astype(np.uint16))
    return StoredTensor(Form.FLOAT32, rows.shape, rows)


assert set(FORMS) == {"float32", "float16", "bfloat16", "int8", "q8_0", "q4_1", "q4_0"}
