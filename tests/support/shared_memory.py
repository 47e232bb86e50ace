"""What is left in the machine's shared memory, beside what other clusters of this machine use."""

import os
from pathlib import Path

from services.runtime.arena_file import open_existing, try_own

SHARED_MEMORY = Path("/dev/shm")


def left_behind() -> set[str]:
    """Names of what is nobody's: all but arenas whose owner lives."""
    return {path.name for path in SHARED_MEMORY.iterdir() if not _is_owned_arena(path)}


def _is_owned_arena(path: Path) -> bool:
    if path.suffix != ".arena":
        return False
    try:
        descriptor = open_existing(path)
    except FileNotFoundError:
        return True  # its owner has just removed it
    try:
        return not try_own(descriptor)
    finally:
        os.close(descriptor)
