"""Large pieces of memory stay with the process when they are freed, for the next ones.

glibc gives the end of a heap back to the system as soon as a few large pieces there are free, and takes it anew, empty,
page by page: of a part of a stream, each of whose copies is such a piece, that costs more than the copies.
"""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of `mallopt`, from malloc.h."""
PIECE_BYTES = 16 << 20
"""Smaller ones come from the heap; a message has at most 4 MiB."""
KEPT_BYTES = 64 << 20
"""At the heap's end, free; more goes back to the system."""


def reuse_large_memory() -> None:
    """For the whole process, once. Does nothing where the C library has no `mallopt`."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, PIECE_BYTES)
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
