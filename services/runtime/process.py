"""A process's life: settings, event loop, signals, logs, telemetry; the same for all five services.

Drain order: draining is announced, health says NOT_SERVING, the server finishes what it has, the bus closes, telemetry
is flushed. A second signal ends the waiting for what is in flight.
"""

import asyncio
import json
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic

import uvloop

from services.core.errors import EngineFault
from services.runtime.bus import Bus
from services.runtime.faults import Faults
from services.runtime.memory_reuse import reuse_large_memory
from services.runtime.metrics import Metrics
from services.runtime.settings import ServiceSettings, SettingsT, load
from services.runtime.telemetry import Telemetry, otlp_exporter

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """Which process this is."""

    service: str
    name: str
    incarnation: str
    """Of this life; a restart has another."""


@dataclass(frozen=True, slots=True)
class Process(Generic[SettingsT]):
    """What every service is given to build itself from."""

    settings: SettingsT
    identity: Identity
    telemetry: Telemetry
    metrics: Metrics
    faults: Faults
    bus: Bus
    """Not entered yet: register listeners first; `serving` enters it."""
    stopping: asyncio.Event
    """Set by SIGTERM, SIGINT or the parent's end."""
    hurrying: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by a second signal: what is in flight is waited for no longer."""


def new_process(service: str, settings: SettingsT) -> Process[SettingsT]:
    """The parts of a process, made from its settings. Call it inside the running loop."""
    incarnation = uuid.uuid4().hex[:12]
    identity = Identity(service, settings.name or f"{service}-{incarnation[:6]}", incarnation)
    resource = {
        "service.name": service,
        "service.namespace": "diptych",
        "service.instance.id": identity.name,
    }
    endpoints = [endpoint for endpoint in (settings.collector, settings.otlp_endpoint) if endpoint]
    metrics = Metrics(service)
    return Process(
        settings=settings,
        identity=identity,
        telemetry=Telemetry(resource, [otlp_exporter(endpoint) for endpoint in endpoints]),
        metrics=metrics,
        faults=Faults(settings.faults, lambda seam: metrics.count("diptych_faults_total", seam=seam)),
        bus=Bus(settings.nats_url, identity.name),
        stopping=asyncio.Event(),
    )


def run(service: str, settings_type: type[SettingsT], main: Callable[[Process[SettingsT]], Awaitable[None]]) -> None:
    """Runs `main` on uvloop until it returns. Exits 0 after a drain, 1 after a fault."""
    settings = load(settings_type, service)
    _log_as_json(settings, service)
    reuse_large_memory()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_live(service, settings, main))
    except EngineFault:
        log.exception("stopped by a fault")
        logging.shutdown()
        # The interpreter would wait for the compute thread, and a step that hangs never returns.
        os._exit(1)


async def _live(service: str, settings: SettingsT, main: Callable[[Process[SettingsT]], Awaitable[None]]) -> None:
    process = new_process(service, settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _told_to_stop, process)
    if settings.exit_with_parent:
        _stop_with_parent(loop, process.stopping)
    try:
        await main(process)
    finally:
        await asyncio.to_thread(process.telemetry.shutdown)
    log.info("stopped")


def _told_to_stop(process: Process[SettingsT]) -> None:
    (process.hurrying if process.stopping.is_set() else process.stopping).set()


def _stop_with_parent(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    """The parent holds the other end of standard input; its end, even by SIGKILL, closes it."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        loop.call_soon_threadsafe(stopping.set)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


class _JsonLines(logging.Formatter):
    """One JSON object per line."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{record.msecs:03.0f}Z",
            "level": record.levelname,
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def _log_as_json(settings: ServiceSettings, service: str) -> None:
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(_JsonLines(service))
    logging.basicConfig(level=settings.log_level, handlers=[output], force=True)
    # A collector that is away is not news worth a traceback per batch.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    logging.getLogger("httpx").setLevel(logging.WARNING)
