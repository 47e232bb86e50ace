"""The server skeleton of all services: gRPC with the edge, health, reflection, Operations, /metrics, announcements."""

import asyncio
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import start_http_server

from services.core.errors import InternalError
from services.core.memory import EngineMemory
from services.pb import operations_pb2, operations_pb2_grpc
from services.runtime import dial, directory
from services.runtime.edge import Edge
from services.runtime.memory import memory_of
from services.runtime.process import Process
from services.runtime.settings import SettingsT
from services.runtime.telemetry import traceparent

log = logging.getLogger(__name__)

OPERATIONS = "diptych.internal.Operations"
READY = "ready"
"""The health service's name for readiness; the empty name is liveness."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a service adds to the skeleton."""

    register: Sequence[Callable[[grpc.aio.Server], None]]
    services: Sequence[str]
    """Full names of the registered gRPC services, for reflection."""
    holdings: Callable[[], list[operations_pb2.Holding]]
    """What is held now, for whom, since when."""
    load: Callable[[], operations_pb2.Load] = operations_pb2.Load
    peers: Callable[[], list[str]] = list
    stores: Callable[[], list[str]] = list
    """Addresses of kvstores it has a session with."""
    near_stores: Callable[[], list[str]] = list
    """Of these, those whose arena it has mapped."""
    memory: Callable[[], EngineMemory] = EngineMemory
    """What its engine has of the process's memory; called beside everything else, on another thread."""
    model: str = ""
    fingerprint: str = ""
    format: str = ""
    http_address: str = ""
    idle: Callable[[], Awaitable[None]] | None = None
    """Returns once nothing is in flight; the drain waits for it, up to `drain_seconds`."""
    hand_back: Callable[[], None] | None = None
    """Gives what is still in flight then back to whoever started it, to go on elsewhere."""


class Server(operations_pb2_grpc.OperationsServicer):
    """A running server: its address and its readiness."""

    def __init__(self, process: Process[SettingsT], parts: Parts) -> None:
        self._process = process
        self._parts = parts
        self._health = health.aio.HealthServicer()
        self._is_ready = False
        self._is_draining = False
        self.address = ""
        self.metrics_address = ""

    async def set_ready(self) -> None:
        """From now on this process takes requests."""
        self._is_ready = True
        await self._health.set(READY, health_pb2.HealthCheckResponse.SERVING)
        log.info("ready at %s", self.address)

    async def live(self, *keepers: Coroutine[None, None, None]) -> None:
        """Runs `keepers` and serves until the process is told to stop, then drains.

        A keeper that ends by itself is broken: what it raised leaves from here, and the process with it.
        """
        tasks = [asyncio.create_task(keeper, name=f"keeper-{place}") for place, keeper in enumerate(keepers)]
        stopping = asyncio.create_task(self._process.stopping.wait(), name="stopping")
        try:
            await self.set_ready()
            await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                await self.drain()
        finally:
            for task in (stopping, *tasks):
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    async def drain(self) -> None:
        """Takes nothing new, says so, and returns when nothing is in flight.

        When the grace period is over, or at once if the process is told again to stop, the rest is given back.
        """
        self._is_ready = False
        self._is_draining = True
        await self._health.set(READY, health_pb2.HealthCheckResponse.NOT_SERVING)
        await self.announce_once()
        await self._process.bus.flush()
        if self._parts.idle is None:
            return
        waits = [asyncio.ensure_future(self._parts.idle()), asyncio.create_task(self._process.hurrying.wait())]
        try:
            timeout = self._process.settings.drain_seconds
            await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if not waits[0].done():
                log.warning("still busy after the grace period, ending what is left")
                if self._parts.hand_back:
                    self._parts.hand_back()
        finally:
            for wait in waits:
                wait.cancel()

    def announcement(self) -> operations_pb2.Announcement:
        identity, parts = self._process.identity, self._parts
        loop = type(asyncio.get_running_loop())
        return operations_pb2.Announcement(
            service=identity.service,
            name=identity.name,
            incarnation=identity.incarnation,
            address=self.address,
            http_address=parts.http_address,
            metrics_address=self.metrics_address,
            model=parts.model,
            fingerprint=parts.fingerprint,
            format=parts.format,
            is_ready=self._is_ready,
            is_draining=self._is_draining,
            load=parts.load(),
            pid=os.getpid(),
            event_loop=f"{loop.__module__}.{loop.__qualname__}",
            has_torch="torch" in sys.modules,
            peers=parts.peers(),
            stores=parts.stores(),
            near_stores=parts.near_stores(),
        )

    async def Audit(self, request: operations_pb2.AuditRequest, context: object) -> operations_pb2.AuditReport:
        identity = self._process.identity
        return operations_pb2.AuditReport(
            service=identity.service,
            name=identity.name,
            incarnation=identity.incarnation,
            holdings=self._holdings(),
            load=self._parts.load(),
        )

    async def Status(self, request: operations_pb2.StatusRequest, context: object) -> operations_pb2.Announcement:
        said = self.announcement()
        if request.with_memory:
            said.memory.CopyFrom(await asyncio.to_thread(memory_of, self._parts.memory))
        return said

    async def listen(self, server: grpc.aio.Server) -> None:
        """Binds and starts. Raises InternalError if the address is taken."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        operations_pb2_grpc.add_OperationsServicer_to_server(self, server)
        for register in self._parts.register:
            register(server)
        reflected = (*self._parts.services, OPERATIONS, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(reflected, server)
        settings = self._process.settings
        try:
            port = server.add_insecure_port(settings.listen)
        except RuntimeError:
            raise InternalError(f"cannot listen on {settings.listen}") from None
        self.address = _reachable(settings.advertise or settings.listen, port)
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)
        await self._health.set(READY, health_pb2.HealthCheckResponse.NOT_SERVING)
        await server.start()

    async def announce(self) -> None:
        """Publishes who this is, twice a second, for ever. The first word of a life carries a trace of its own."""
        telemetry, identity = self._process.telemetry, self._process.identity
        with telemetry.phase("bus.announce", service=identity.service) as span:
            headers = {"traceparent": traceparent(span)}
        while True:
            await self.announce_once(headers)
            await asyncio.sleep(directory.ANNOUNCE_SECONDS)

    async def announce_once(self, headers: dict[str, str] | None = None) -> None:
        identity = self._process.identity
        self._publish_load()
        topic = directory.subject(identity.service, identity.name)
        await self._process.bus.publish(topic, self.announcement().SerializeToString(), headers)

    def _publish_load(self) -> None:
        load, metrics = self._parts.load(), self._process.metrics
        for name in ("running", "waiting", "blocks_total", "blocks_used", "blocks_cached", "waiting_tokens"):
            metrics.set(f"diptych_{name}", getattr(load, name))
        ages = [holding.age_seconds for holding in self._holdings() if holding.request_id or holding.kind == "span"]
        metrics.set("diptych_oldest_holding_seconds", max(ages, default=0.0))

    def _holdings(self) -> list[operations_pb2.Holding]:
        now = time.monotonic()
        spans = [
            operations_pb2.Holding(kind="span", state=name, age_seconds=now - since, count=1)
            for name, since in self._process.telemetry.open_spans()
        ]
        return [*self._parts.holdings(), *spans]


@asynccontextmanager
async def serving(process: Process[SettingsT], parts: Parts) -> AsyncIterator[Server]:
    """A server for the length of the block; `Server.live` is what a service does in it."""
    settings = process.settings
    server = Server(process, parts)
    rpc = grpc.aio.server(interceptors=[Edge(settings.token.get_secret_value())], options=list(dial.SERVER_OPTIONS))
    scrape = None
    async with process.bus:
        await server.listen(rpc)
        if settings.metrics_port is not None:
            host = settings.listen.rpartition(":")[0]
            scrape, _ = start_http_server(settings.metrics_port, addr=host, registry=process.metrics.registry)
            server.metrics_address = f"{host}:{scrape.server_port}"
        announcing = asyncio.create_task(server.announce(), name="announce")
        try:
            yield server
        finally:
            announcing.cancel()
            await asyncio.gather(announcing, return_exceptions=True)
            await rpc.stop(grace=0.2)
            if scrape is not None:
                await asyncio.to_thread(scrape.shutdown)
                scrape.server_close()


def _reachable(address: str, port: int) -> str:
    """`address` with the port that was really taken where it says 0."""
    host, _, given = address.rpartition(":")
    return f"{host}:{port if given in ('', '0') else given}"
