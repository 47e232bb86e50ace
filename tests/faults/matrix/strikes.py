"""What strikes a request: a process is killed, hangs, drains or is cut off, the bus goes away, the client leaves."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from services.cli.cluster import LocalCluster
from tests.faults.clusters import Plants, Shape, layout
from tests.faults.matrix.link import Link, linked
from tests.faults.matrix.stages import STAGES, Thing
from tests.faults.matrix.table import Cell
from tests.support.local_cluster import local_cluster

HOLD_SECONDS = 1.0
LONG_HOLD_SECONDS = 4.0
"""Until a deadline has passed."""
CALM_SESSION_SECONDS = 6.0
"""Longer than a long hold, which may delay a session's ticks."""
DRAIN_SECONDS = 12
SERVICES = ("gateway", "scheduler", "prefill", "decode", "kvstore")

ALWAYS: Mapping[str, Mapping[str, Plants]] = {"corrupt blocks": {"prefill": {"kv.out": {"corrupt": 1}}}}
"""Faults that are there from the beginning."""
PLENTY = Shape(scheduler=2)
SHAPES: Mapping[str, Shape] = {
    "store full": replace(PLENTY, store_blocks=4),
    "workers full": replace(PLENTY, worker_blocks=32),
}


@dataclass(slots=True)
class Struck:
    """A cluster for one cell, and what was done to it."""

    cluster: LocalCluster
    links: Mapping[str, Link]
    undo: list[str] = field(default_factory=list)
    """Processes that hang."""

    async def by(self, fault: str, things: Sequence[Thing]) -> None:
        """The fault happens to whoever has the request; nothing for what is there from the beginning."""
        if fault == "NATS away":
            return await self.cluster.stop_nats()
        service, _, verb = fault.partition(" ")
        if service not in SERVICES:
            return
        name = victim(service, things)
        match verb:
            case "killed":
                self.cluster.processes[name].kill()
            case "drains":
                self.cluster.processes[name].terminate()
            case "cut off":
                self.links[name].cut()
            case "hangs":
                self.cluster.processes[name].pause()
                self.undo.append(name)

    async def over(self, fault: str) -> None:
        """What can pass has passed: who hung goes on, links are whole, who is needed to ask again is back."""
        for name in self.undo:
            self.cluster.processes[name].resume()
        for link in self.links.values():
            link.mend()
        if fault == "NATS away":
            await self.cluster.start_nats()
        if fault in ("gateway killed", "gateway drains"):
            await self.cluster.restart("gateway-0")


def victim(service: str, things: Sequence[Thing]) -> str:
    """Who of a service has the request; the first if nobody does."""
    return next((thing.process for thing in things if thing.process.startswith(service)), f"{service}-0")


@asynccontextmanager
async def prepared(cell: Cell, model: Path, directory: Path) -> AsyncIterator[Struck]:
    """A cluster in which the cell's request will be held in its stage."""
    is_late = cell.fault == "deadline passes"
    plants = dict(STAGES[cell.stage].plants(LONG_HOLD_SECONDS if is_late else HOLD_SECONDS))
    for service, more in ALWAYS.get(cell.fault, {}).items():
        plants[service] = {**plants.get(service, {}), **more}
    made = layout(model, SHAPES.get(cell.fault, PLENTY), plants)
    fields = {name: dict(each) for name, each in made.fields.items()}
    async with AsyncExitStack() as stack:
        links = {}
        if cell.fault.endswith("cut off"):
            service = cell.fault.partition(" ")[0]
            for name in (f"{service}-0", f"{service}-1"):
                link = links[name] = await stack.enter_async_context(linked())
                fields[name] = {"listen": link.target, "advertise": link.address}
        if is_late:
            for service in SERVICES:
                fields[service]["session_timeout"] = f"{CALM_SESSION_SECONDS:g}"
        shaped = replace(made, fields=fields, drain_seconds=DRAIN_SECONDS)
        cluster = await stack.enter_async_context(local_cluster(directory, shaped))
        yield Struck(cluster, links)
