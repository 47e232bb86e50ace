"""The safetensors format, mapped and streamed.

    8 bytes: n, little endian | n bytes: JSON {name: {dtype, shape, data_offsets}} | the values, back to back

Own code, because the library's numpy side reads no bfloat16, copies every tensor and writes only from memory: here a
float32 tensor is a view of the mapped file, shared by all processes that open it, and a model of any size is written
tensor by tensor. Format: https://huggingface.co/docs/safetensors
"""

import hashlib
import json
import math
import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from services.modelfiles.errors import ModelError
from services.modelfiles.tensors import Floats, LazyTensor, Shape

_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100_000_000
_ALIGNMENT = 64
"""Of the first value in files written here: one cache line."""

_Raw: TypeAlias = npt.NDArray[np.uint8]


def _from_bfloat16(raw: _Raw) -> Floats:
    """bfloat16 is the upper half of float32."""
    return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)


_READERS: Mapping[str, tuple[int, Callable[[_Raw], Floats]]] = {
    "F32": (4, lambda raw: raw.view("<f4")),
    "F16": (2, lambda raw: raw.view("<f2").astype(np.float32)),
    "BF16": (2, _from_bfloat16),
}
"""By dtype: bytes per value, and the values as float32."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One tensor's line in the header; offsets count from the first value."""

    name: str
    dtype: str
    shape: Shape
    begin: int
    end: int


def open_safetensors(path: Path) -> dict[str, LazyTensor]:
    """Every tensor in the file by name, the header checked against the file's size.

    float32 tensors are read as copy-on-write views of the mapped file: torch may wrap them, and writing to one
    changes neither the file nor another process. Raises `ModelError` naming the file, and the tensor where one is at
    fault; of other dtypes than float32, float16 and bfloat16 only when read.
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
    return {entry.name: LazyTensor(entry.shape, _reader(path.name, entry, values)) for entry in entries}


def write_safetensors(path: Path, tensors: Mapping[str, LazyTensor]) -> str:
    """Write the tensors as float32 in the order given, one in memory at a time; returns blake2b of the file, in hex."""
    digest = hashlib.blake2b(digest_size=32)
    with path.open("xb") as file:
        head = _header(tensors)
        file.write(head)
        digest.update(head)
        for name, tensor in tensors.items():
            values = tensor.read()
            if values.shape != tensor.shape:
                raise ModelError(f"{name} holds {values.size} values, its shape is {list(tensor.shape)}")
            raw = np.ascontiguousarray(values, dtype="<f4").reshape(-1).view(np.uint8).data
            file.write(raw)
            digest.update(raw)
    return digest.hexdigest()


def _parse(file_name: str, header: bytes) -> list[_Entry]:
    try:
        listed = json.loads(header)
        return [
            _Entry(name, str(line["dtype"]), tuple(map(int, line["shape"])), *map(int, line["data_offsets"]))
            for name, line in listed.items()
            if name != "__metadata__"
        ]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelError(f"{file_name} has a damaged safetensors header") from error


def _check(file_name: str, entry: _Entry, available: int) -> None:
    if entry.end > available:
        raise ModelError(f"{file_name} is truncated: {entry.name} ends after the file")
    width = _READERS[entry.dtype][0] if entry.dtype in _READERS else None
    misplaced = entry.begin < 0 or entry.begin > entry.end or min(entry.shape, default=0) < 0
    if misplaced or (width is not None and entry.end - entry.begin != width * math.prod(entry.shape)):
        raise ModelError(f"{file_name}: {entry.name} does not have the size that its shape needs")


def _reader(file_name: str, entry: _Entry, values: _Raw) -> Callable[[], Floats]:
    def read() -> Floats:
        if entry.dtype not in _READERS:
            raise ModelError(f"{file_name}: {entry.name} is {entry.dtype}; only F32, F16 and BF16 are supported")
        return _READERS[entry.dtype][1](values[entry.begin : entry.end]).reshape(entry.shape)

    return read


def _header(tensors: Mapping[str, LazyTensor]) -> bytes:
    lines: dict[str, object] = {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + 4 * math.prod(tensor.shape)
        lines[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(lines, separators=(",", ":")).encode()
    text += b" " * (-(_LENGTH_BYTES + len(text)) % _ALIGNMENT)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text
