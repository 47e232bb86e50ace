"""Large pieces of memory are not given back and taken anew each time."""

import subprocess
import sys

FAULTS = """
import resource, sys
from services.runtime.memory_reuse import reuse_large_memory
if sys.argv[1] == "reused":
    reuse_large_memory()
begin = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    pieces = [bytes(1 << 20) for _ in range(8)]
    del pieces
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begin)
"""
PAGES = 8 * (1 << 20) // 4096
"""Of all pieces."""


def faults(mode: str) -> int:
    """Pages that the system had to give while large pieces were taken and given back a hundred times."""
    found = subprocess.run([sys.executable, "-c", FAULTS, mode], capture_output=True, text=True, check=True)
    return int(found.stdout)


def test_the_pages_of_a_large_piece_are_taken_from_the_system_once() -> None:
    assert faults("reused") < 3 * PAGES < faults("plain")
