"""How much memory the stores of a local cluster take: less than they would where the machine has little to share."""

import shutil

from services.runtime.arena_file import DIRECTORY

USUAL_BYTES = 384 << 20
"""What a store takes if it is told nothing."""
LEAST_BYTES = 16 << 20
"""With less than this a store holds hardly a prompt; better that it says what is missing."""


def free_bytes() -> int:
    """Of the machine's shared memory; containers often have 64 MiB."""
    try:
        return shutil.disk_usage(DIRECTORY).free
    except OSError:
        return 0


def arena_bytes(kvstores: int, free: int) -> int:
    """Of each store's arena: the usual, or an even share of three quarters of what is free."""
    share = free * 3 // 4 // max(kvstores, 1)
    return USUAL_BYTES if share >= USUAL_BYTES else max(share, LEAST_BYTES)
