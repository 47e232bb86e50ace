"""The bytes: one file in shared memory, pages by number, all of it taken from the system before the store is ready.

Owns the file and its lock. What page belongs to whom is the index's; must not know hashes or hand-overs.
"""

import logging
import mmap
import os
import secrets
from pathlib import Path
from typing import Self

import xxhash

from services.core.errors import InternalError
from services.runtime.arena_file import HEADER_BYTES, arena_name, header, is_slot_held, sweep, try_own

log = logging.getLogger(__name__)

ALIGNMENT = 4096


class Arena:
    """A context manager; leaving removes the file. Workers that have it mapped keep their mapping."""

    def __init__(self, directory: Path, size: int) -> None:
        """Sweeps `directory` and takes `size` bytes there.

        Raises InternalError, in words for the operator, where there is not so much room or no such directory.
        """
        self.size = size - size % ALIGNMENT
        self.nonce = secrets.randbits(64)
        try:
            if removed := sweep(directory):
                log.info("removed %d arenas whose store is gone", removed)
            self.path, self._descriptor = _new_file(directory)
        except OSError as error:
            raise InternalError(f"cannot make the arena in {directory}: {error.strerror}") from None
        try:
            os.posix_fallocate(self._descriptor, 0, HEADER_BYTES + self.size)
            os.pwrite(self._descriptor, header(self.nonce), 0)
            self._memory = mmap.mmap(self._descriptor, HEADER_BYTES + self.size)
        except OSError as error:
            self._remove()
            raise InternalError(
                f"the arena of {self.size} bytes does not fit into {directory}: {error.strerror}. Set capacity_bytes, "
                "or give the container more shared memory (--shm-size)"
            ) from None
        self._view = memoryview(self._memory)

    def write(self, start: int, part: bytes) -> None:
        """Copies `part` to byte `start` of the pages."""
        start += HEADER_BYTES
        self._view[start : start + len(part)] = part

    def read(self, start: int, count: int) -> memoryview:
        """`count` bytes from byte `start` of the pages on; what they are may change with the next await."""
        start += HEADER_BYTES
        return self._view[start : start + count].toreadonly()

    def checksum(self, start: int, count: int) -> int:
        """xxh3-64 of `count` bytes."""
        return xxhash.xxh3_64_intdigest(self.read(start, count))

    def is_slot_held(self, slot: int) -> bool:
        """Whether the worker that was given `slot` may still copy."""
        return is_slot_held(self._descriptor, slot)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()
        self._view.release()
        self._memory.close()

    def _remove(self) -> None:
        """First the name, so that no sweeper sees it without its lock."""
        self.path.unlink(missing_ok=True)
        os.close(self._descriptor)


def _new_file(directory: Path) -> tuple[Path, int]:
    """A new, empty, private file, and the owner's lock on it."""
    while True:
        path = directory / arena_name(secrets.token_hex(8))
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        # A sweeper may have seen it before it was locked: then it is given up, for another.
        if try_own(descriptor) and os.fstat(descriptor).st_nlink:
            return path, descriptor
        os.close(descriptor)
