"""Packed matrices on disk: written once, complete or not at all, and never in the way of a worker."""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from services.engine.compiled.packed_file import PackedMatrix, packed_matrices

MATRICES = [
    PackedMatrix("a", "float32", 3, np.arange(2 * 192, dtype=np.uint16).astype(np.uint8).reshape(2, 192)),
    PackedMatrix("b", "q4_1", 32, np.arange(320, dtype=np.uint16).astype(np.uint8).reshape(1, 320)),
]


class Packer:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Iterator[PackedMatrix]:
        self.calls += 1
        yield from MATRICES


def assert_complete(found: dict[str, PackedMatrix]) -> None:
    assert list(found) == ["a", "b"]
    for matrix in MATRICES:
        got = found[matrix.name]
        assert (got.form, got.inputs) == (matrix.form, matrix.inputs)
        assert np.array_equal(got.panels, matrix.panels)


def test_what_was_packed_once_is_mapped_from_then_on(tmp_path: Path) -> None:
    pack = Packer()
    for _ in range(3):
        assert_complete(packed_matrices(tmp_path / "packed" / "auto-1.bin", pack))
    assert pack.calls == 1


def test_of_many_who_ask_at_once_one_packs(tmp_path: Path) -> None:
    pack = Packer()
    found: list[dict[str, PackedMatrix]] = []
    threads = [
        threading.Thread(target=lambda: found.append(packed_matrices(tmp_path / "auto-1.bin", pack))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pack.calls == 1 and len(found) == 8
    for one in found:
        assert_complete(one)


def test_panels_begin_at_pages_and_cannot_be_written(tmp_path: Path) -> None:
    found = packed_matrices(tmp_path / "auto-1.bin", Packer())
    assert all(matrix.panels.ctypes.data % 4096 == 0 for matrix in found.values())
    with pytest.raises(ValueError, match="read-only"):
        found["a"].panels[0, 0] = 1


def test_an_error_while_packing_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Iterator[PackedMatrix]:
        yield MATRICES[0]
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        packed_matrices(tmp_path / "auto-1.bin", broken)
    assert [path.name for path in tmp_path.iterdir()] == ["auto-1.lock"]
    assert_complete(packed_matrices(tmp_path / "auto-1.bin", Packer()))


def test_where_nothing_can_be_written_the_weights_stay_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    assert_complete(packed_matrices(tmp_path / "file" / "auto-1.bin", Packer()))


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 5000, (10**6).to_bytes(8, "little")])
def test_a_damaged_file_is_packed_anew(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "auto-1.bin"
    path.write_bytes(content)
    pack = Packer()
    assert_complete(packed_matrices(path, pack))
    assert pack.calls == 1
