"""How much of some memory is resident in this process, page by page, from Linux's /proc/self/pagemap.

An entry is 64 bits per page: bit 63 says that the page is in the process's page table, bit 61 that it belongs to a file
(proc_pid_pagemap(5)); both are told without privileges.
"""

import mmap
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

PAGEMAP = Path("/proc/self/pagemap")
_ENTRY = np.dtype("<u8")
_PRESENT, _OF_FILE = np.uint64(1 << 63), np.uint64(1 << 61)


class Span(NamedTuple):
    """A run of bytes in memory."""

    address: int
    size: int


class ResidentBytes(NamedTuple):
    """Of mapped files, and of all else."""

    mapped: int
    private: int

    def __add__(self, other: object) -> "ResidentBytes":
        if not isinstance(other, ResidentBytes):
            return NotImplemented
        return ResidentBytes(self.mapped + other.mapped, self.private + other.private)


def resident_bytes(spans: Iterable[Span]) -> ResidentBytes:
    """Of spans that do not overlap. Raises `OSError` where the system does not tell."""
    total = ResidentBytes(0, 0)
    with PAGEMAP.open("rb", buffering=0) as pages:
        for span in spans:
            if span.size:
                total += _of_span(pages, span)
    return total


def _of_span(pages: BinaryIO, span: Span) -> ResidentBytes:
    size = mmap.PAGESIZE
    first, end = span.address // size, -(-(span.address + span.size) // size)
    pages.seek(first * _ENTRY.itemsize)
    entries = np.frombuffer(pages.read((end - first) * _ENTRY.itemsize), _ENTRY)
    if len(entries) != end - first:
        raise OSError("the page map ends early")
    held = np.full(end - first, size)
    held[0] -= span.address - first * size
    held[-1] -= end * size - (span.address + span.size)
    present, of_file = (entries & _PRESENT) != 0, (entries & _OF_FILE) != 0
    return ResidentBytes(int(held[present & of_file].sum()), int(held[present & ~of_file].sum()))
