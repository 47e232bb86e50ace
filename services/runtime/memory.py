"""What this process's resident memory is used for, from its engine's word and the system's."""

import mmap
from collections.abc import Callable
from pathlib import Path

from services.core.memory import EngineMemory, ProcessMemory, Resident
from services.pb import operations_pb2

STATM = Path("/proc/self/statm")
ROLLUP = Path("/proc/self/smaps_rollup")
STATUS = Path("/proc/self/status")


def memory_of(engine: Callable[[], EngineMemory]) -> operations_pb2.Memory:
    """Empty where the system does not tell (it is not Linux). Takes milliseconds: not for the event loop's thread."""
    try:
        found = ProcessMemory.of(engine(), resident())
    except OSError:
        return operations_pb2.Memory()
    of_engine = found.engine
    return operations_pb2.Memory(
        resident=found.resident,
        weights_mapped=of_engine.weights_mapped,
        weights_private=of_engine.weights_private,
        kv=of_engine.kv,
        step=of_engine.step,
        code=found.code,
        heap=found.heap,
        kv_reserved=of_engine.kv_reserved,
        arena=found.arena,
        device=of_engine.device,
    )


def resident() -> Resident:
    """This process's. Raises `OSError` where there is no /proc."""
    total = int(STATM.read_text().split()[1]) * mmap.PAGESIZE
    rollup, status = _kilobytes(ROLLUP), _kilobytes(STATUS)
    anonymous, shared = rollup["Anonymous"] * 1024, status.get("RssShmem", 0) * 1024
    return Resident(total, rollup["Rss"] * 1024 - anonymous - shared, shared, anonymous)


def _kilobytes(page: Path) -> dict[str, int]:
    """Lines such as `Rss:  1648 kB`."""
    lines = (line.split() for line in page.read_text().splitlines())
    return {fields[0].rstrip(":"): int(fields[1]) for fields in lines if fields[2:] == ["kB"]}
