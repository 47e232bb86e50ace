"""A tensor in the form in which the model's file has it.

Forms that the engine can multiply as they are stay as they are, because their bytes are what decoding reads; all
others are float32 from the moment they are read.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from services.modelfiles import ggml_blocks
from services.modelfiles.ggml_blocks import BLOCK_WEIGHTS, BlockLayout, Floats

Shape: TypeAlias = tuple[int, ...]
Array: TypeAlias = npt.NDArray[Any]


class Form(Enum):
    """How the values of a tensor are written."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    Q4_0 = "q4_0"
    Q4_1 = "q4_1"
    Q8_0 = "q8_0"


BLOCK_LAYOUTS: Mapping[Form, BlockLayout] = {
    Form.Q4_0: ggml_blocks.Q4_0,
    Form.Q4_1: ggml_blocks.Q4_1,
    Form.Q8_0: ggml_blocks.Q8_0,
}
"""The quantized forms."""

_VALUE_TYPES: Mapping[Form, np.dtype[Any]] = {
    Form.FLOAT32: np.dtype("<f4"),
    Form.FLOAT16: np.dtype("<f2"),
    Form.BFLOAT16: np.dtype("<u2"),
}


def data_type(form: Form) -> np.dtype[Any]:
    """Of the array that holds a tensor of this form; quantized ones are bytes."""
    return _VALUE_TYPES.get(form, np.dtype("u1"))


def data_shape(form: Form, shape: Shape) -> Shape:
    """Of the array that holds a tensor of this form and logical shape.

    Raises `ValueError` if the form cannot have the shape: quantized tensors are matrices of whole blocks.
    """
    if form not in BLOCK_LAYOUTS:
        return shape
    if len(shape) != 2 or shape[1] % BLOCK_WEIGHTS:
        raise ValueError("a quantized tensor is a matrix whose rows are whole blocks")
    return shape[0], BLOCK_LAYOUTS[form].row_bytes(shape[1])


def data_bytes(form: Form, shape: Shape) -> int:
    """Size of a tensor of this form and logical shape; raises `ValueError` as `data_shape` does."""
    return data_type(form).itemsize * math.prod(data_shape(form, shape))


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """A tensor's values as they are in its file. `data` may be a view of the mapped file."""

    form: Form
    shape: Shape
    """Logical, `[out, in]` for matrices."""
    data: Array
    """Floats: an array of `shape`, bfloat16 as its bits in uint16. Quantized: uint8 `[rows, row bytes]`, read-only."""

    def __post_init__(self) -> None:
        if self.data.dtype != data_type(self.form) or self.data.shape != data_shape(self.form, self.shape):
            raise ValueError("the data is not that of the form and shape")

    def floats(self) -> Floats:
        """The values as float32 of `shape`: the data itself if it is that, else a new array."""
        if self.form in BLOCK_LAYOUTS:
            return BLOCK_LAYOUTS[self.form].floats(self.data)
        if self.form is Form.BFLOAT16:
            # bfloat16 is the upper half of float32.
            return (self.data.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return self.data.astype(np.float32, copy=False)


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """A tensor that is read when asked for, so that preparing a model needs room for one tensor."""

    form: Form | None
    """None if the file has it in a form that cannot be read; what nobody needs may be so."""
    shape: Shape
    read: Callable[[], StoredTensor]
    """Returns the tensor of this form and shape; raises `ModelError` if the stored values cannot be read."""
