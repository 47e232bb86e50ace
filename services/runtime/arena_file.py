"""The file of an arena, as the store that owns it and the workers of its node know it: name, first page, locks.

    diptych-<random>.arena        0600, of one user
    [ header | page 0 | page 1 | ... ]

    the whole file     locked (flock) by the store, for life: whoever gets this lock has found an orphan
    byte `slot`        locked by the worker that was given the slot, as long as a copy of its may touch the pages

Locks end with the process that holds them, however that ends, and mean the same in every container that sees the file.
"""

import fcntl
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from services.core.errors import KVIncompatible

DIRECTORY = Path("/dev/shm")
"""Where arenas are unless an operator says otherwise: files there are memory."""
HEADER_BYTES = 4096
"""Pages begin at a page of the system."""

_HEADER = struct.Struct("<8sQ")
_MAGIC = b"DIPTYCH1"
_PATTERN = "diptych-*.arena"
_LOCK = struct.Struct("@hhqqi0q")
"""`struct flock` of Linux on 64 bits."""


def arena_name(random_digits: str) -> str:
    return _PATTERN.replace("*", random_digits)


def header(nonce: int) -> bytes:
    """What the first page begins with; the nonce is known only to those whom the store told it."""
    return _HEADER.pack(_MAGIC, nonce)


def open_existing(path: Path) -> int:
    """A descriptor of an arena's file. Raises OSError, or KVIncompatible if it is not a private file of this user."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or stat.S_IMODE(found.st_mode) != 0o600 or found.st_uid != os.geteuid():
        os.close(descriptor)
        raise KVIncompatible("the arena is not a private file of this user")
    return descriptor


def try_own(descriptor: int) -> bool:
    """Takes the owner's lock, unless somebody has it."""
    # Not a lock of fcntl's older kind: such a lock is lost when any descriptor of the file is closed.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def hold_slot(descriptor: int, slot: int) -> None:
    """Locks byte `slot`. Raises OSError if it is held, or there are no such locks."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, slot, 1, 0))


def free_slot(descriptor: int, slot: int) -> None:
    """Unlocks it, also where another descriptor of the same opening is left."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, slot, 1, 0))


def is_slot_held(descriptor: int, slot: int) -> bool:
    """Whether somebody else has byte `slot` locked."""
    asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, slot, 1, 0)
    answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked)
    return bool(_LOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def sweep(directory: Path) -> int:
    """Removes this user's arenas whose owner is gone; how many there were. Any process may sweep, at any time."""
    return sum(_remove_orphan(path) for path in directory.glob(_PATTERN))


def _remove_orphan(path: Path) -> bool:
    with _opened(path) as descriptor:
        if descriptor is None or not try_own(descriptor):
            return False
        path.unlink(missing_ok=True)
        return True


@contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    """None if somebody was quicker to remove it, or it is another's."""
    try:
        descriptor = open_existing(path)
    except (OSError, KVIncompatible):
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)
