"""A store's arena in a worker's memory: found to be the same file, mapped, and read and written page by page.

That the file can be opened and bears the store's nonce is the proof that both are on one node. Knows neither sessions
nor hand-overs.
"""

import ctypes
import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from services.core.errors import KVIncompatible
from services.runtime.arena_file import HEADER_BYTES, free_slot, header, hold_slot, open_existing

_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE, which the mmap module does not name."""


class ArenaPlace(NamedTuple):
    """What a store says of its arena to one worker."""

    path: Path
    size: int
    """Of all pages together, in bytes."""
    stride: int
    """From the beginning of a page to that of the next."""
    nonce: int
    slot: int
    """The byte this worker locks."""


class ArenaMap:
    """All pages of one arena. `close` once no copy runs; until then the worker's slot stays locked."""

    def __init__(self, place: ArenaPlace, block_bytes: int) -> None:
        """Raises OSError if there is no such file here, KVIncompatible if it is another."""
        self.place = place
        self.block_bytes = block_bytes
        self._descriptor = open_existing(place.path)
        try:
            self._memory = self._mapped()
            hold_slot(self._descriptor, place.slot)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._view = memoryview(self._memory)

    @property
    def num_pages(self) -> int:
        return self.place.size // self.place.stride

    def page(self, number: int) -> memoryview:
        """The block in a page. Raises KVIncompatible for a page there is not."""
        if not 0 <= number < self.num_pages:
            raise KVIncompatible("the arena has no such page")
        start = HEADER_BYTES + number * self.place.stride
        return self._view[start : start + self.block_bytes]

    def populate(self, start: int, count: int) -> None:
        """Has the system map `count` bytes from `start` on, so that copies do not wait for it page by page.

        Best effort; releases the interpreter's lock.
        """
        anchor = ctypes.c_char.from_buffer(self._memory)
        count = min(count, len(self._memory) - start)
        address = ctypes.c_void_p(ctypes.addressof(anchor) + start)
        _libc.madvise(address, ctypes.c_size_t(count), _POPULATE_WRITE)

    def close(self) -> None:
        """Pages are not to be had any more, and the slot is free."""
        self._view.release()
        # What still refers to a page (the traceback of an error, say) keeps the mapping, but copies no more.
        with suppress(BufferError):
            self._memory.close()
        free_slot(self._descriptor, self.place.slot)
        os.close(self._descriptor)

    def _mapped(self) -> mmap.mmap:
        size = HEADER_BYTES + self.place.size
        if os.fstat(self._descriptor).st_size != size or self.place.stride < self.block_bytes:
            raise KVIncompatible("the arena has another size than its store says")
        memory = mmap.mmap(self._descriptor, size)
        expected = header(self.place.nonce)
        if memory[: len(expected)] != expected:
            memory.close()
            raise KVIncompatible("the arena is another store's")
        return memory


_libc = ctypes.CDLL(None)
