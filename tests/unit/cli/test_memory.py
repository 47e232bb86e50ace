"""The memory report of a cluster, from what its processes say."""

from rich.console import Console

from services.cli.memory import memory_json, memory_table
from services.cli.record import ServiceRecord
from services.cli.status import Report
from services.pb import operations_pb2

MEMORY = operations_pb2.Memory(
    resident=400_000_000,
    weights_mapped=96_000_000,
    weights_private=1_000_000,
    kv=30_000_000,
    step=8_000_000,
    code=120_000_000,
    heap=134_000_000,
    arena=10_000_000,
    kv_reserved=64_000_000,
)


def report(name: str, said: operations_pb2.Announcement | None) -> Report:
    return Report(ServiceRecord(name.split("-")[0], name, "127.0.0.1:1", 1), said)


def decode() -> Report:
    load = operations_pb2.Load(blocks_total=64, blocks_used=16, blocks_cached=8)
    return report("decode-0", operations_pb2.Announcement(memory=MEMORY, load=load))


def test_blocks_are_told_in_bytes_by_what_they_are_used_for() -> None:
    found = memory_json(decode())
    assert found is not None
    assert (found["kv_used"], found["kv_cached"], found["kv_free"]) == (16_000_000, 8_000_000, 40_000_000)
    parts = ("weights_mapped", "weights_private", "kv_resident", "step", "arena", "code", "heap")
    assert sum(found[part] for part in parts) == 399_000_000


def test_a_process_that_is_silent_or_cannot_tell_has_no_report() -> None:
    assert memory_json(report("decode-0", None)) is None
    assert memory_json(report("decode-0", operations_pb2.Announcement())) is None


def test_the_table_has_a_line_for_every_process_and_dashes_where_there_is_nothing() -> None:
    gateway = report("gateway-0", operations_pb2.Announcement(memory=operations_pb2.Memory(resident=90_000_000)))
    console = Console(width=200, record=True)
    console.print(memory_table([decode(), gateway, report("kvstore-0", None)]))
    lines = {line.split()[0]: line.split()[1:] for line in console.export_text().splitlines() if "-0 " in line}
    assert lines["decode-0"] == ["400.0", "96.0", "1.0", "16.0", "8.0", "40.0", "30.0", "8.0", "10.0", "120.0", "134.0"]
    assert lines["gateway-0"] == ["90.0", *["-"] * 7, "0.0", "0.0", "0.0"]
    assert lines["kvstore-0"] == ["-"] * 11
