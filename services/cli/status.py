"""`diptych status`: every process of the running cluster, as it describes itself."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from services.cli.record import ClusterRecord, ServiceRecord
from services.core.errors import DiptychError
from services.pb import operations_pb2, operations_pb2_grpc
from services.runtime import dial
from services.runtime.edge import remote_errors

ANSWER_SECONDS = 2.0
ORDER = ("gateway", "scheduler", "prefill", "decode", "kvstore")


@dataclass(frozen=True, slots=True)
class Report:
    """One recorded process, and its own word if it answers."""

    recorded: ServiceRecord
    said: operations_pb2.Announcement | None

    @property
    def state(self) -> str:
        if self.said is None:
            return "no answer"
        if self.said.is_draining:
            return "draining"
        return "ready" if self.said.is_ready else "starting"


async def reports(record: ClusterRecord, with_memory: bool = False) -> list[Report]:
    """All processes of the cluster by service and name; asks them all at once."""
    asked = operations_pb2.StatusRequest(with_memory=with_memory)
    found = await asyncio.gather(*(_report(service, record.token, asked) for service in record.services))
    return sorted(found, key=lambda report: (ORDER.index(report.recorded.service), report.recorded.name))


def table(found: Sequence[Report]) -> Table:
    """One line per process, and below a scheduler one for each traffic class, if it has several or has shed any."""
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("name", "state"):
        shown.add_column(heading, no_wrap=True)
    for heading in ("running", "waiting", "used", "cached", "blocks"):
        shown.add_column(heading, justify="right")
    shown.add_column("address", no_wrap=True)
    for report in found:
        load = report.said.load if report.said else operations_pb2.Load()
        blocks = (load.blocks_used, load.blocks_cached, load.blocks_total) if load.blocks_total else ("-", "-", "-")
        counts = (load.running, load.waiting) if report.said else ("-", "-")
        style = "" if report.state == "ready" else "yellow"
        shown.add_row(
            report.recorded.name, report.state, *map(str, (*counts, *blocks)), report.recorded.address, style=style
        )
        for each in _told(load):
            style = "yellow" if each.shed else ""
            shown.add_row(f"  {each.name}", f"shed {each.shed}", str(each.running), str(each.waiting), style=style)
    return shown


Value = str | int | bool | list[str] | list[dict[str, str | int]]


def as_json(found: Sequence[Report]) -> list[dict[str, Value]]:
    """The same with everything a process says of itself."""
    return [_row(report) for report in found]


def _told(load: operations_pb2.Load) -> Sequence[operations_pb2.ClassLoad]:
    """Classes worth a line of their own."""
    return load.classes if len(load.classes) > 1 or any(each.shed for each in load.classes) else ()


def _row(report: Report) -> dict[str, Value]:
    recorded, said = report.recorded, report.said or operations_pb2.Announcement()
    load = said.load
    return {
        "service": recorded.service,
        "name": recorded.name,
        "state": report.state,
        "address": recorded.address,
        "http_address": said.http_address,
        "metrics_address": said.metrics_address,
        "pid": recorded.pid,
        "incarnation": said.incarnation,
        "model": said.model,
        "event_loop": said.event_loop,
        "has_torch": said.has_torch,
        "peers": list(said.peers),
        "running": load.running,
        "waiting": load.waiting,
        "waiting_tokens": load.waiting_tokens,
        "blocks_used": load.blocks_used,
        "blocks_cached": load.blocks_cached,
        "blocks_total": load.blocks_total,
        "classes": [_class_row(each) for each in load.classes],
    }


def _class_row(load: operations_pb2.ClassLoad) -> dict[str, str | int]:
    return {"name": load.name, "running": load.running, "waiting": load.waiting, "shed": load.shed}


async def _report(service: ServiceRecord, token: str, asked: operations_pb2.StatusRequest) -> Report:
    async with dial.channel(service.address) as channel:
        stub = operations_pb2_grpc.OperationsStub(channel)
        try:
            with remote_errors():
                said = await stub.Status(asked, timeout=ANSWER_SECONDS, metadata=dial.call_metadata(token))
        except DiptychError:
            return Report(service, None)
    return Report(service, said)
