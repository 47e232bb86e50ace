"""What this process's resident memory is used for, from its engine's word and the system's."""

import mmap
from collections.abc import Callable
from pathlib import Path

from services.core.memory import EngineMemory, ProcessMemory, Resident
from services.pb import operations_pb2

STATM = Path("/proc/self/statm")
ROLLUP = Path("/proc/self/smaps_rollup")


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
        device=of_engine.device,
    )


def resident() -> Resident:
    """This process's. Raises `OSError` where there is no /proc."""
    total = int(STATM.read_text().split()[1]) * mmap.PAGESIZE
    kilobytes = {}
    for line in ROLLUP.read_text().splitlines()[1:]:
        name, amount = line.split(":")
        kilobytes[name] = int(amount.split()[0])
    anonymous = kilobytes["Anonymous"] * 1024
    return Resident(total, kilobytes["Rss"] * 1024 - anonymous, anonymous)
