"""Resident pages of real memory: what has been touched counts, to the byte."""

import ctypes
import mmap
from pathlib import Path

import pytest

from services.engine import residency
from services.engine.residency import ResidentBytes, Span, resident_bytes

PAGE = mmap.PAGESIZE


def address_of(memory: mmap.mmap) -> int:
    view = (ctypes.c_char * len(memory)).from_buffer(memory)
    try:
        return ctypes.addressof(view)
    finally:
        del view


def anonymous(pages: int) -> mmap.mmap:
    memory = mmap.mmap(-1, pages * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # A huge page would make neighbours resident.
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory


def test_pages_count_once_they_are_written() -> None:
    with anonymous(8) as memory:
        whole = Span(address_of(memory), len(memory))
        assert resident_bytes([whole]) == (0, 0)
        memory[2 * PAGE] = 1
        memory[5 * PAGE : 7 * PAGE] = b"x" * (2 * PAGE)
        assert resident_bytes([whole]) == ResidentBytes(0, 3 * PAGE)


def test_only_the_spans_part_of_its_first_and_last_page_counts() -> None:
    with anonymous(3) as memory:
        memory[:] = b"x" * len(memory)
        start = address_of(memory)
        assert resident_bytes([Span(start + 100, 2 * PAGE)]).private == 2 * PAGE
        assert resident_bytes([Span(start + 100, 50)]).private == 50
        assert resident_bytes([Span(start, 10), Span(start + 20, 10), Span(start, 0)]).private == 20


def test_pages_of_a_file_are_told_from_others_until_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(2 * PAGE))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as memory:
        whole = Span(address_of(memory), len(memory))
        assert memory[0] == memory[PAGE] == 0
        assert resident_bytes([whole]) == ResidentBytes(2 * PAGE, 0)
        memory[0] = 1
        assert resident_bytes([whole]) == ResidentBytes(PAGE, PAGE)


def test_a_system_that_does_not_tell_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residency, "PAGEMAP", tmp_path / "absent")
    with pytest.raises(OSError):
        resident_bytes([Span(0, 1)])
