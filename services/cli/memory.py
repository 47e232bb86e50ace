"""`diptych status --memory`: what every process's resident memory is used for, as it says itself."""

from collections.abc import Sequence

from rich.table import Table

from services.cli.status import Report
from services.pb import operations_pb2

COLUMNS = (
    "resident",
    "weights mapped",
    "weights private",
    "KV used",
    "KV cached",
    "KV free",
    "KV resident",
    "step",
    "arena",
    "code",
    "heap",
)


def memory_table(found: Sequence[Report]) -> Table:
    """One line per process, in MB."""
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), caption=_CAPTION, caption_justify="left")
    shown.add_column("name", no_wrap=True)
    for heading in COLUMNS:
        shown.add_column(heading, justify="right")
    for report in found:
        shown.add_row(report.recorded.name, *_cells(report))
    return shown


def memory_json(report: Report) -> dict[str, int] | None:
    """Bytes by kind; None for a process that does not answer, or whose system does not tell."""
    if report.said is None or not report.said.memory.resident:
        return None
    memory = report.said.memory
    used, cached, free = _blocks(report.said)
    return {
        "resident": memory.resident,
        "weights_mapped": memory.weights_mapped,
        "weights_private": memory.weights_private,
        "kv_resident": memory.kv,
        "step": memory.step,
        "arena": memory.arena,
        "code": memory.code,
        "heap": memory.heap,
        "kv_used": used,
        "kv_cached": cached,
        "kv_free": free,
        "device": memory.device,
    }


_CAPTION = (
    "MB. resident = weights + KV resident + step + arena + code + heap, about. Mapped weights and the arena of a "
    "kvstore are shared by the processes of this machine; a worker's KV blocks take memory once they are written."
)


def _cells(report: Report) -> list[str]:
    bytes_of = memory_json(report)
    if bytes_of is None:
        return ["-"] * len(COLUMNS)
    has_engine = bool(bytes_of["kv_used"] + bytes_of["kv_cached"] + bytes_of["kv_free"])
    of_engine = ("weights_mapped", "weights_private", "kv_used", "kv_cached", "kv_free", "kv_resident", "step")
    cells = [_megabytes(bytes_of[name]) if has_engine else "-" for name in of_engine]
    of_all = [_megabytes(bytes_of[name]) for name in ("arena", "code", "heap")]
    return [_megabytes(bytes_of["resident"]), *cells, *of_all]


def _blocks(said: operations_pb2.Announcement) -> tuple[int, int, int]:
    """Bytes of used, cached and free KV blocks."""
    load = said.load
    if not load.blocks_total:
        return 0, 0, 0
    size = said.memory.kv_reserved // load.blocks_total
    free = load.blocks_total - load.blocks_used - load.blocks_cached
    return load.blocks_used * size, load.blocks_cached * size, free * size


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f}"
