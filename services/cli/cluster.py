"""A whole cluster on this machine: nats-server, the trace collector and the five services as processes.

Entering starts everything and returns when it is ready; leaving drains it in order and leaves nothing behind. If this
process is killed, every child notices the end of its standard input and ends by itself.
"""

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Self

from services.cli.arena_room import USUAL_BYTES, free_bytes
from services.cli.bell import Bell
from services.cli.child import Child, ChildSpec, lifeline_pipe
from services.cli.cluster_audit import ClusterAudit
from services.cli.collector import Collector, collecting
from services.cli.errors import CommandError
from services.cli.layout import DRAIN_ORDER, WORKS_WITH, ClusterLayout, Member, Wiring, added, members
from services.cli.nats_server import NatsServer
from services.cli.ports import require_free_ports
from services.cli.record import ClusterRecord, ServiceRecord
from services.cli.scaling import Plan, number_of, planned, service_of
from services.pb import operations_pb2
from services.runtime.arena_file import DIRECTORY, sweep
from services.runtime.bus import Bus
from services.runtime.directory import Directory

READY_SECONDS = 180.0
KNOWN_SECONDS = 30.0
"""Until the others have found a process that is ready."""
DRAIN_MARGIN_SECONDS = 5.0
"""On top of the services' own drain time, for closing what is left."""

_ARENA_DIRECTORY = "DIPTYCH_KVSTORE__ARENA_DIRECTORY"

Report = Callable[[str, str], None]
"""Called with the name of a process and what has become of it."""


class LocalCluster:
    """An async context manager. `processes` and `nats` may be killed, paused and restarted while it runs."""

    def __init__(
        self, layout: ClusterLayout, directory: Path, environment: Mapping[str, str], report: Report = lambda *_: None
    ) -> None:
        """`directory` is for logs and must exist; `environment` is what the processes inherit."""
        self._layout = layout
        self._directory = directory
        self._environment = environment
        self._report = report
        self._bell = Bell()
        self._announced: dict[str, operations_pb2.Announcement] = {}
        self._lifeline = -1
        self._members: dict[str, Member] = {}
        self._stack = AsyncExitStack()
        self._scaling = asyncio.Lock()
        self._leaving: set[str] = set()
        self.token = secrets.token_hex(16)
        self.nats = NatsServer(directory, layout.nats_port, self.token)
        self.processes: dict[str, Child] = {}
        """The service processes by name, such as `decode-0`."""
        self.audit = ClusterAudit(self.token, self.living)
        """What is stranded, looked at every few seconds."""
        self.collector: Collector

    async def __aenter__(self) -> Self:
        require_free_ports(self._layout)
        async with AsyncExitStack() as stack:
            self._lifeline = stack.enter_context(lifeline_pipe())
            stack.callback(sweep, Path(self._environment.get(_ARENA_DIRECTORY, DIRECTORY)))
            self.collector = await stack.enter_async_context(collecting(self.token))
            stack.push_async_callback(self.nats.stop)
            await self.start_nats()
            await stack.enter_async_context(self._hearing())
            stack.push_async_callback(self._drain)
            await self._start_members()
            await stack.enter_async_context(self.audit.standing())
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def gateway(self) -> operations_pb2.Announcement:
        """Its addresses, among others."""
        return self.announcement("gateway-0")

    def announcement(self, name: str) -> operations_pb2.Announcement:
        """What the present life of the process `name` last said of itself."""
        return self._announced[name]

    async def start_nats(self) -> None:
        """Starts nats-server, again on the same port if it ran before."""
        await self.nats.start(self._environment, self._lifeline, self._bell.ring)

    async def stop_nats(self) -> None:
        await self.nats.stop()

    async def restart(self, name: str) -> None:
        """Kills the process if it lives, starts it anew and returns when it is ready."""
        await self.processes[name].kill_and_wait()
        await self._start(self._members[name], self._report)
        await self._until_ready([name], self._report)

    async def until_death(self, known: Collection[int] = ()) -> Child:
        """The first service process found dead whose pid is not in `known`."""

        def fresh() -> list[Child]:
            return [child for child in self.processes.values() if self._has_died(child) and child.pid not in known]

        await self._bell.until(lambda: bool(fresh()), None)
        return fresh()[0]

    def _has_died(self, child: Child) -> bool:
        return not child.is_alive and child.spec.name not in self._leaving

    async def scale(self, wish: Mapping[str, int], report: Report = lambda *_: None) -> None:
        """Starts and drains processes until each pool of the wish has its size; new ones are ready and known by then.

        Raises CommandError, with the cluster as it was, if that cannot be, if the bus is away, over which the others
        would hear of new ones, or while it is already being scaled.
        """
        if self._scaling.locked():
            raise CommandError("the cluster is being scaled already; try again when that is done")
        async with self._scaling:
            if self.nats.child is None or not self.nats.child.is_alive:
                raise CommandError("the cluster cannot be scaled while its NATS is away")
            plan = planned([child.spec.name for child in self.processes.values() if child.is_alive], wish)
            _require_room(self._layout, plan)
            for name in [name for name, child in self.processes.items() if not child.is_alive]:
                del self.processes[name], self._members[name]
            await self._grow(plan.starting, report)
            await self._shrink(plan.stopping, report)

    async def _grow(self, names: Collection[str], report: Report) -> None:
        wiring = Wiring(self.nats.url, self.collector.address, self.token)
        new = {name: added(self._layout, wiring, service_of(name), number_of(name)) for name in names}
        known = [name for name in self._members if name not in new]
        self._members.update(new)
        try:
            for member in new.values():
                await self._start(member, report)
            await self._until_ready(names, report)
            if not await self._bell.until(lambda: all(map(self._is_settled, known)), KNOWN_SECONDS):
                raise CommandError(f"the others have not found the new ones after {KNOWN_SECONDS:g} s")
        except BaseException:
            await self._shrink(names, lambda *_: None)
            raise

    def _is_settled(self, name: str) -> bool:
        return not self.processes[name].is_alive or self._is_ready(name)

    async def _shrink(self, names: Collection[str], report: Report) -> None:
        """Drains them, who asks before who answers; they are not told of as dead."""
        self._leaving.update(names)
        children = [self.processes[name] for name in names if name in self.processes]
        try:
            await self._end_in_order(children, report)
        finally:
            await asyncio.gather(*(child.kill_and_wait() for child in children))
            for name in names:
                self.processes.pop(name, None)
                self._members.pop(name, None)
            self._leaving.difference_update(names)

    def living(self) -> list[ServiceRecord]:
        """Processes that have not ended; one that has not said where it is has no address."""
        return [self._recorded(child) for child in self.processes.values() if child.is_alive]

    def record(self) -> ClusterRecord:
        """Where everything is, for other commands."""
        return ClusterRecord(
            pid=os.getpid(),
            gateway_grpc=self.gateway.address,
            gateway_http=self.gateway.http_address,
            nats_url=self.nats.url,
            collector=self.collector.address,
            token=self.token,
            services=tuple(map(self._recorded, self.processes.values())),
        )

    def _recorded(self, child: Child) -> ServiceRecord:
        announced = self._announced.get(child.spec.name)
        return ServiceRecord(child.spec.service, child.spec.name, announced.address if announced else "", child.pid)

    @asynccontextmanager
    async def _hearing(self) -> AsyncIterator[None]:
        bus = Bus(self.nats.url, "local-cluster")
        Directory(bus, [service for group in DRAIN_ORDER for service in group], self._heard)
        async with bus:
            yield

    def _heard(self, announcement: operations_pb2.Announcement, _: str) -> None:
        child = self.processes.get(announcement.name)
        if child is not None and child.pid == announcement.pid:
            self._announced[announcement.name] = announcement
            self._bell.ring()

    async def _start_members(self) -> None:
        wiring = Wiring(self.nats.url, self.collector.address, self.token)
        self._members = {member.name: member for member in members(self._layout, wiring)}
        for member in self._members.values():
            await self._start(member, self._report)
        await self._until_ready(self._members, self._report)

    async def _start(self, member: Member, report: Report) -> None:
        spec = ChildSpec(
            service=member.service,
            name=member.name,
            command=[str(self._layout.pythons.get(member.service, sys.executable)), "-m", f"services.{member.service}"],
            environment={**self._environment, **member.environment},
            log=self._directory / f"{member.name}.log",
            processors=member.processors,
        )
        self._announced.pop(member.name, None)
        report(member.name, "starting")
        self.processes[member.name] = await Child.start(spec, self._lifeline, self._bell.ring)

    async def _until_ready(self, names: Collection[str], report: Report) -> None:
        """Raises CommandError with the end of a log when one dies, or is not ready in time."""
        waiting = set(names)

        def all_ready() -> bool:
            for name in names:
                if not self.processes[name].is_alive:
                    raise CommandError(self.processes[name].obituary())
                if name in waiting and self._is_ready(name):
                    waiting.discard(name)
                    report(name, "ready")
            return not waiting

        if not await self._bell.until(all_ready, READY_SECONDS):
            name = min(waiting)
            raise CommandError(
                f"{name} is not ready after {READY_SECONDS:g} s; the end of its log:\n{self.processes[name].tail()}"
            )

    def _is_ready(self, name: str) -> bool:
        announcement = self._announced.get(name)
        if announcement is None or not announcement.is_ready or announcement.pid != self.processes[name].pid:
            return False
        wanted = {other for service in WORKS_WITH.get(announcement.service, ()) for other in self._names(service)}
        return wanted <= set(announcement.peers)

    def _names(self, service: str) -> list[str]:
        return [member.name for member in self._members.values() if member.service == service]

    async def _drain(self) -> None:
        """Ends the services in order; whatever happens here, none is left."""
        try:
            await self._end_in_order(list(self.processes.values()), self._report)
        finally:
            await asyncio.gather(*(child.kill_and_wait() for child in self.processes.values()))

    async def _end_in_order(self, children: Collection[Child], report: Report) -> None:
        for services in DRAIN_ORDER:
            group = [child for child in children if child.spec.service in services]
            await asyncio.gather(*(self._end(child, report) for child in group))

    async def _end(self, child: Child, report: Report) -> None:
        report(child.spec.name, "stopping")
        await child.stop(self._layout.drain_seconds + DRAIN_MARGIN_SECONDS)
        report(child.spec.name, "stopped")


def _require_room(layout: ClusterLayout, plan: Plan) -> None:
    stores = sum(service_of(name) == "kvstore" for name in plan.starting)
    if stores and stores * (layout.arena_bytes or USUAL_BYTES) > free_bytes():
        raise CommandError("the machine has too little shared memory left for so many KV stores")
