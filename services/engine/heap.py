"""Keeps the C heap from giving large buffers back between steps.

A step gathers megabytes and frees them. By default glibc maps such buffers afresh each time, and the kernel clears
every page again: at long contexts that costs more than the arithmetic (a decode step of 8 rows behind 1 500 positions:
0.65 s against 0.30 s). See mallopt(3).
"""

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_KEEP_BYTES = 1 << 30
_GROW_BYTES = 64 << 20


def keep_large_buffers() -> bool:
    """For this whole process; False where the C library has no such setting (macOS, musl), which is only slower."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_MMAP_THRESHOLD, _KEEP_BYTES), (_TRIM_THRESHOLD, _KEEP_BYTES), (_TOP_PAD, _GROW_BYTES))
    return all(mallopt(parameter, value) == 1 for parameter, value in settings)
