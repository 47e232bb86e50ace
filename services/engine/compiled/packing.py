"""A weight matrix into panels of 16 outputs (see `forms`), from float32 or from the blocks of a GGUF file.

Packing only moves numbers, except into int8, which rounds: per output channel, to the nearest multiple of a 127th of
the channel's largest weight.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from services.engine.compiled.kernels.forms import GROUP, PANEL, WHOLE, panel_bytes
from services.modelfiles.stored_tensor import Form, StoredTensor

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

NATIVE = {
    Form.FLOAT32: "float32",
    Form.FLOAT16: "float16",
    Form.BFLOAT16: "bfloat16",
    Form.Q8_0: "q8_0",
    Form.Q4_1: "q4_1",
    Form.Q4_0: "q4_0",
}
"""The form that keeps a stored tensor as it is."""

_CODES_AT = {"q8_0": 2, "q4_1": 4, "q4_0": 2}
"""Bytes of scales before the numbers in a block of the file."""


def packed(tensor: StoredTensor, form: str) -> Bytes:
    """`[panels, panel_bytes]` of a matrix `[outputs, inputs]`; missing outputs of the last panel are zeros."""
    if form in WHOLE and tensor.shape[1] % GROUP:
        raise ValueError(f"a matrix of whole numbers needs a multiple of {GROUP} inputs")
    if form in _CODES_AT:
        panels = _packed_blocks(np.asarray(tensor.data), form)
    elif form == "int8":
        panels = _packed_int8(tensor.floats())
    elif form == "float32":
        panels = _packed_flat(tensor.floats())
    else:
        panels = _packed_flat(np.asarray(tensor.data))
    assert panels.shape[1] == panel_bytes(form, tensor.shape[1])
    return panels


def _packed_flat(rows: npt.NDArray[Any]) -> Bytes:
    in_panels = _panels(rows)  # [panels, 16, inputs]
    return np.ascontiguousarray(in_panels.swapaxes(1, 2)).reshape(len(in_panels), -1).view(np.uint8)


def _packed_int8(rows: Floats) -> Bytes:
    # A channel of zeros keeps a scale that is a number.
    scales = np.maximum(np.abs(rows).max(axis=1) / np.float32(127), np.float32(1e-30)).astype(np.float32)
    codes = np.clip(np.rint(rows / scales[:, None]), -127, 127).astype(np.int8)
    in_groups = _panels(codes).reshape(-1, PANEL, rows.shape[1] // GROUP, GROUP).swapaxes(1, 2)
    pairs = _in_pairs(in_groups).view(np.uint8)
    return np.concatenate([_panels(scales).view(np.uint8), pairs.reshape(len(pairs), -1)], axis=1)


def _packed_blocks(blocks: Bytes, form: str) -> Bytes:
    """`blocks` is `[outputs, bytes]`, whole blocks of 32 inputs as in the file."""
    head = _CODES_AT[form]
    size = head + (GROUP if form == "q8_0" else GROUP // 2)
    by_group = (
        _panels(blocks).reshape(-1, PANEL, blocks.shape[1] // size, size).swapaxes(1, 2)
    )  # [panels, groups, 16, size]
    scales = by_group[..., :head].reshape(*by_group.shape[:3], head // 2, 2).swapaxes(2, 3)  # [.., scales, 16, 2]
    codes = by_group[..., head:]
    if form == "q8_0":
        packed = _in_pairs(codes)
    else:
        # In the file a byte holds inputs j and j + 16.
        pairs = _in_pairs(np.concatenate([codes & 15, codes >> 4], axis=-1))
        packed = _in_words(pairs.reshape(*pairs.shape[:2], 4, 4, PANEL, 2)).view(np.uint8)
    groups = by_group.shape[:2]
    record = np.concatenate([scales.reshape(*groups, -1), packed.reshape(*groups, -1)], axis=-1)
    return np.ascontiguousarray(record).reshape(groups[0], -1)


def _in_pairs(codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`[panels, groups, 16 outputs, 32 inputs]` as `[panels, groups, 16 pairs, 16 outputs, 2 inputs]`."""
    return np.ascontiguousarray(codes.reshape(*codes.shape[:3], GROUP // 2, 2).swapaxes(2, 3))


def _in_words(numbers: Bytes) -> npt.NDArray[np.uint16]:
    """Numbers of 4 bits, `[panels, groups, 4, 4 digits, 16 outputs, 2 inputs]`, without the digits."""
    wide = numbers.astype(np.uint16)
    return np.ascontiguousarray(
        wide[..., 0, :, :] | wide[..., 1, :, :] << 4 | wide[..., 2, :, :] << 8 | wide[..., 3, :, :] << 12
    )


def _panels(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`[outputs, …]` as `[panels, 16, …]`."""
    missing = -len(rows) % PANEL
    if missing:
        rows = np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])
    return rows.reshape(-1, PANEL, *rows.shape[1:])
