"""The safetensors format, mapped and streamed.

    8 bytes: n, little endian | n bytes: JSON {name: {dtype, shape, data_offsets}} | the values, back to back

Own code, because the library's numpy side reads no bfloat16, copies every tensor and writes only from memory: here a
tensor is a view of the mapped file, shared by all processes that open it, and a model of any size is written tensor by
tensor. Format: https://huggingface.co/docs/safetensors

Quantized tensors have no dtype of their own there. They are written as the bytes they are, U8 `[rows, row bytes]`, and
the header's `__metadata__` has the form of each under its name.
"""

import hashlib
import json
import mmap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from services.modelfiles.errors import ModelError
from services.modelfiles.ggml_blocks import BLOCK_WEIGHTS, Bytes
from services.modelfiles.stored_tensor import (
    BLOCK_LAYOUTS,
    Form,
    LazyTensor,
    Shape,
    StoredTensor,
    data_bytes,
    data_shape,
    data_type,
)

_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100_000_000
_ALIGNMENT = 64
"""Of the first value in files written here: one cache line."""

_METADATA = "__metadata__"
_BYTES = "U8"
_FORMS = {"F32": Form.FLOAT32, "F16": Form.FLOAT16, "BF16": Form.BFLOAT16}
_DTYPES = {form: dtype for dtype, form in _FORMS.items()}
_QUANTIZED = {form.value: form for form in BLOCK_LAYOUTS}


@dataclass(frozen=True, slots=True)
class _Entry:
    """One tensor's line in the header; offsets count from the first value."""

    name: str
    dtype: str
    form: Form | None
    """None for a dtype that is not read."""
    shape: Shape
    """Logical: that of the weights, not of their bytes."""
    begin: int
    end: int


def open_safetensors(path: Path) -> dict[str, LazyTensor]:
    """Every tensor in the file by name, the header checked against the file's size.

    Floats are read as copy-on-write views of the mapped file: torch may wrap them, and writing to one changes neither
    the file nor another process. Raises `ModelError` naming the file, and the tensor where one is at fault; of other
    dtypes than float32, float16 and bfloat16 only when read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if size < _LENGTH_BYTES + header_bytes or not 2 <= header_bytes <= _MOST_HEADER_BYTES:
            raise ModelError(f"{path.name} is truncated or not a safetensors file")
        entries = _parse(path.name, file.read(header_bytes))
        start = _LENGTH_BYTES + header_bytes
        for entry in entries:
            _check(path.name, entry, size - start)
        values = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), dtype=np.uint8)[start:]
    return {entry.name: LazyTensor(entry.form, entry.shape, _reader(path.name, entry, values)) for entry in entries}


def write_safetensors(path: Path, tensors: Mapping[str, LazyTensor]) -> str:
    """Write the tensors in their forms, one in memory at a time; returns blake2b of the file, in hex.

    Those with wider values come first and the order given decides between equals: with nothing between tensors, each
    then begins at a multiple of the width of its values. Raises `ModelError` naming a tensor that cannot be read.
    """
    forms = {name: tensor.form or tensor.read().form for name, tensor in tensors.items()}
    names = sorted(tensors, key=lambda name: -data_type(forms[name]).itemsize)
    digest = hashlib.blake2b(digest_size=32)
    with path.open("xb") as file:
        head = _header((name, forms[name], tensors[name].shape) for name in names)
        file.write(head)
        digest.update(head)
        for name in names:
            stored = tensors[name].read()
            if (stored.form, stored.shape) != (forms[name], tensors[name].shape):
                raise ModelError(f"{name} is not of the form and shape that were announced")
            raw = np.ascontiguousarray(stored.data).reshape(-1).view(np.uint8).data
            file.write(raw)
            digest.update(raw)
    return digest.hexdigest()


def _parse(file_name: str, header: bytes) -> list[_Entry]:
    try:
        lines = json.loads(header)
        quantized = lines.pop(_METADATA, None) or {}
        return [_entry(name, line, quantized.get(name)) for name, line in lines.items()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelError(f"{file_name} has a damaged safetensors header") from error


def _entry(name: str, line: Mapping[str, object], quantized: object) -> _Entry:
    dtype, shape, (begin, end) = str(line["dtype"]), _whole(line["shape"]), _whole(line["data_offsets"])
    form = _QUANTIZED.get(str(quantized)) if dtype == _BYTES else _FORMS.get(dtype)
    if form is not None and form in BLOCK_LAYOUTS:
        rows, row_bytes = shape
        blocks, rest = divmod(row_bytes, BLOCK_LAYOUTS[form].block_bytes)
        if rest:
            raise ValueError("rows that are not whole blocks")
        shape = (rows, blocks * BLOCK_WEIGHTS)
    return _Entry(name, dtype, form, shape, begin, end)


def _whole(numbers: object) -> tuple[int, ...]:
    if not isinstance(numbers, list):
        raise TypeError("not a list of numbers")
    return tuple(map(int, numbers))


def _check(file_name: str, entry: _Entry, available: int) -> None:
    if entry.end > available:
        raise ModelError(f"{file_name} is truncated: {entry.name} ends after the file")
    size = entry.end - entry.begin
    misplaced = entry.begin < 0 or size < 0 or min(entry.shape, default=0) < 0
    if misplaced or (entry.form is not None and size != data_bytes(entry.form, entry.shape)):
        raise ModelError(f"{file_name}: {entry.name} does not have the size that its shape needs")


def _reader(file_name: str, entry: _Entry, values: Bytes) -> Callable[[], StoredTensor]:
    def read() -> StoredTensor:
        if entry.form is None:
            raise ModelError(f"{file_name}: {entry.name} is {entry.dtype}; only F32, F16 and BF16 are supported")
        raw = values[entry.begin : entry.end]
        data = raw.view(data_type(entry.form)).reshape(data_shape(entry.form, entry.shape))
        if entry.form in BLOCK_LAYOUTS:
            data.flags.writeable = False
        return StoredTensor(entry.form, entry.shape, data)

    return read


def _header(tensors: Iterable[tuple[str, Form, Shape]]) -> bytes:
    lines: dict[str, object] = {}
    quantized: dict[str, str] = {}
    end = 0
    for name, form, shape in tensors:
        begin, end = end, end + data_bytes(form, shape)
        dtype, stored_shape = _DTYPES.get(form, _BYTES), list(data_shape(form, shape))
        lines[name] = {"dtype": dtype, "shape": stored_shape, "data_offsets": [begin, end]}
        if form in BLOCK_LAYOUTS:
            quantized[name] = form.value
    text = json.dumps({_METADATA: quantized} | lines if quantized else lines, separators=(",", ":")).encode()
    text += b" " * (-(_LENGTH_BYTES + len(text)) % _ALIGNMENT)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text
