"""The GGUF container: metadata as Python values, tensors as views of the mapped file.

    magic, version, number of tensors, number of metadata values | key, type, value ... | name, dimensions, type,
    offset ... | padding | the tensors, each at a multiple of the alignment

Little endian, versions 2 and 3. Own code, because the library's reader makes several numpy objects of every string, and
a vocabulary is a hundred thousand of them: seconds against a fraction of one. What can be asked of the library without
reading (types, their block sizes) is. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

from services.modelfiles.errors import ModelError
from services.modelfiles.ggml_blocks import Bytes
from services.modelfiles.stored_tensor import Shape

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MOST_DIMENSIONS = 4
_STRING, _ARRAY = 8, 9
_SCALARS = dict(enumerate(("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?"))) | {10: "<Q", 11: "<q", 12: "<d"}
"""Type number of a metadata value to its `struct` code."""


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor as the file has it."""

    kind: Kind
    shape: Shape
    """Outermost dimension first, the other way round from the file."""
    raw: Bytes
    """`[bytes]`, a read-only view of the mapped file."""


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """A GGUF file, opened."""

    metadata: Mapping[str, object]
    """Numbers, booleans, strings, and lists of these."""
    tensors: Mapping[str, GGUFTensor]


def open_gguf(path: Path) -> GGUFFile:
    """Raises `ModelError` if the file is truncated, damaged, or no GGUF file of a known version."""
    try:
        content = _mapped(path)
        cursor = _Cursor(content.data)
        if bytes(cursor.take(len(_MAGIC))) != _MAGIC or cursor.scalar("<I") not in _VERSIONS:
            raise ValueError("another format")
        tensor_count, value_count = cursor.count(), cursor.count()
        metadata = _metadata(cursor, value_count)
        places = [_place(cursor) for _ in range(tensor_count)]
        start = _aligned(cursor.position, metadata.get("general.alignment", _DEFAULT_ALIGNMENT))
    except (ValueError, struct.error) as error:
        raise ModelError(f"{path.name} is truncated or not a GGUF file") from error
    tensors = {place.name: _tensor(path.name, place, content[start:]) for place in places}
    if len(tensors) != len(places):
        raise ModelError(f"{path.name} has two tensors of one name")
    return GGUFFile(metadata, tensors)


def _mapped(path: Path) -> Bytes:
    with path.open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)


class _Cursor:
    """Reads one thing after another; `ValueError` where the file ends before it does."""

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self.position = 0

    def take(self, size: int) -> memoryview:
        end = self.position + size
        if end > len(self._content):
            raise ValueError("the file ends too early")
        taken = self._content[self.position : end]
        self.position = end
        return taken

    def scalar(self, code: str) -> int | float | bool:
        value: int | float | bool
        (value,) = struct.unpack(code, self.take(struct.calcsize(code)))
        return value

    def count(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def text(self) -> str:
        return str(self.take(self.count()), "utf-8")

    def value(self) -> object:
        kind = int(self.scalar("<I"))
        if kind != _ARRAY:
            return self._value_of(kind)
        kind, length = int(self.scalar("<I")), self.count()
        if kind in _SCALARS:
            width = struct.calcsize(_SCALARS[kind])
            return np.frombuffer(self.take(width * length), dtype=_SCALARS[kind]).tolist()
        return [self._value_of(kind) for _ in range(length)]

    def _value_of(self, kind: int) -> object:
        if kind == _STRING:
            return self.text()
        if kind not in _SCALARS:
            raise ValueError("a metadata value of an unknown type")
        return self.scalar(_SCALARS[kind])


@dataclass(frozen=True, slots=True)
class _Place:
    """A tensor's line in the header."""

    name: str
    shape: Shape
    kind: int
    offset: int
    """From the first tensor."""


def _metadata(cursor: _Cursor, count: int) -> dict[str, object]:
    metadata: dict[str, object] = {}
    for _ in range(count):
        key = cursor.text()
        if key in metadata:
            raise ValueError("a key that is there twice")
        metadata[key] = cursor.value()
    return metadata


def _place(cursor: _Cursor) -> _Place:
    name, dimensions = cursor.text(), int(cursor.scalar("<I"))
    if not 1 <= dimensions <= _MOST_DIMENSIONS:
        raise ValueError("a tensor of no or too many dimensions")
    shape = tuple(cursor.count() for _ in range(dimensions))[::-1]
    return _Place(name, shape, int(cursor.scalar("<I")), cursor.count())


def _aligned(position: int, alignment: object) -> int:
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise ValueError("the alignment is no power of two")
    return -(-position // alignment) * alignment


def _tensor(file_name: str, place: _Place, values: Bytes) -> GGUFTensor:
    try:
        kind = Kind(place.kind)
    except ValueError as error:
        raise ModelError(f"{file_name}: {place.name} is stored as type {place.kind}, which is not known") from error
    block_weights, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    if place.shape and place.shape[-1] % block_weights:
        raise ModelError(f"{file_name}: the rows of {place.name} are not whole blocks of {kind.name}")
    end = place.offset + math.prod(place.shape) // block_weights * block_bytes
    if end > len(values):
        raise ModelError(f"{file_name} is truncated: {place.name} ends after the file")
    return GGUFTensor(kind, place.shape, values[place.offset : end])
