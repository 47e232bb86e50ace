"""Packed matrices on disk: made once per model and form, mapped by every worker on the machine, who share its pages.

    panels    each matrix from a page's beginning on
    index     JSON: version, and for each matrix its form, inputs, panels and offset
    8 bytes   length of the index

The file appears under its name complete or not at all; who packs holds a lock, so that others wait instead of packing
the same.
"""

import fcntl
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from services.engine.compiled.kernels.forms import panel_bytes

log = logging.getLogger(__name__)

VERSION = 2
"""Of the panels' layout."""
_ALIGNMENT = 4096
_LENGTH_BYTES = 8

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix in panels; `panels` is `[panels, panel_bytes]`."""

    name: str
    form: str
    inputs: int
    panels: Bytes


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    form: str
    inputs: int
    panels: int
    offset: int


def packed_matrices(path: Path, pack: Callable[[], Iterable[PackedMatrix]]) -> dict[str, PackedMatrix]:
    """What is in the file, made by `pack` first if it is not there; kept in memory alone where it cannot be written."""
    found = _mapped(path)
    if found is not None:
        return found
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            if (found := _mapped(path)) is not None:
                return found
            _write(path, pack())
    except OSError as error:
        log.warning("packed weights cannot be kept (%s); every start packs anew", error.strerror)
    found = _mapped(path)
    return {matrix.name: matrix for matrix in pack()} if found is None else found


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(path: Path, matrices: Iterable[PackedMatrix]) -> None:
    partial = path.with_suffix(".partial")
    try:
        # The index is only known at the end, so it is written last, after the panels.
        with partial.open("wb") as file:
            entries = [_write_panels(file, matrix) for matrix in matrices]
            index = json.dumps({"version": VERSION, "matrices": [asdict(entry) for entry in entries]}).encode()
            file.write(index)
            file.write(len(index).to_bytes(_LENGTH_BYTES, "little"))
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)


def _write_panels(file: BinaryIO, matrix: PackedMatrix) -> _Entry:
    offset = file.tell()
    file.write(matrix.panels.tobytes())
    file.write(bytes(-file.tell() % _ALIGNMENT))
    return _Entry(matrix.name, matrix.form, matrix.inputs, len(matrix.panels), offset)


def _mapped(path: Path) -> dict[str, PackedMatrix] | None:
    """None if there is no such file, or if it is not whole."""
    try:
        content = np.memmap(path, dtype=np.uint8, mode="r")
        end = len(content) - _LENGTH_BYTES
        length = int.from_bytes(content[end:].tobytes(), "little")
        index = json.loads(content[end - length : end].tobytes())
        return {entry.name: _matrix(entry, content) for entry in (_Entry(**fields) for fields in index["matrices"])}
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _matrix(entry: _Entry, content: Bytes) -> PackedMatrix:
    size = panel_bytes(entry.form, entry.inputs)
    panels = content[entry.offset : entry.offset + entry.panels * size].reshape(entry.panels, size)
    return PackedMatrix(entry.name, entry.form, entry.inputs, panels)
