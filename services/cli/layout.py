"""Which processes a local cluster has, and what each is told through its environment. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from services.cli.errors import CommandError

LOOPBACK = "127.0.0.1"
DRAIN_ORDER = (("gateway",), ("scheduler",), ("prefill", "decode"), ("kvstore",))
"""Who asks leaves before who answers."""
WORKS_WITH = {
    "gateway": ("scheduler",),
    "scheduler": ("prefill", "decode", "kvstore"),
    "prefill": ("kvstore",),
    "decode": ("kvstore",),
}
"""Whom a process must have found before the cluster is ready; else the first requests would go without a split."""
ESSENTIAL = ("gateway", "scheduler", "decode")
"""Services without which no request is answered: prefill and kvstore only make it faster."""


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """A cluster on one machine. Raises CommandError for one that could not answer anything."""

    model: Path = Path()
    """A prepared model directory."""
    prefill: int = 1
    """Prefill workers; 0 lets decode workers prefill by themselves."""
    decode: int = 1
    kvstore: int = 1
    scheduler: int = 1
    """Any number at once: the gateway spreads requests over them, and goes on with another when one is lost."""
    http_port: int = 0
    """0 takes a free one, as for the others."""
    grpc_port: int = 0
    nats_port: int = 0
    threads: int = 0
    """Compute threads of each worker; 0 shares the processors out among the workers."""
    processors: tuple[int, ...] = ()
    """Those of the machine that compute threads may keep to; none leaves the choice to the system."""
    arena_bytes: int = 0
    """Memory of each store; 0 leaves it at the store's own default."""
    engine: Mapping[str, str] = field(default_factory=dict)
    """Settings of the workers' engines: `weights`, `kv_dtype` and so on."""
    drain_seconds: float = 10.0
    fields: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """More settings, service or process name to field to value; they win over the ones made here, a process' over its
    service's."""

    pythons: Mapping[str, Path] = field(default_factory=dict)
    """Interpreter by service; others run in this process's own."""

    def __post_init__(self) -> None:
        if self.decode < 1:
            raise CommandError("--decode must be at least 1: without a decode worker nothing is answered")
        if self.scheduler < 1:
            raise CommandError("--scheduler must be at least 1: without one nothing is answered")
        if self.prefill < 0 or self.kvstore < 0:
            raise CommandError("--prefill and --kvstore cannot be negative")
        if self.prefill and not self.kvstore:
            raise CommandError("--kvstore must be at least 1, unless --prefill is 0")


@dataclass(frozen=True, slots=True)
class Wiring:
    """What all processes of one cluster share."""

    nats_url: str
    collector: str
    token: str


@dataclass(frozen=True, slots=True)
class Member:
    """One service process to be."""

    service: str
    name: str
    environment: Mapping[str, str]
    """Its settings, on top of the environment it inherits."""
    processors: tuple[int, ...] = ()
    """Those it may run on; none leaves it all."""


def threads_of(layout: ClusterLayout) -> int:
    """Of each worker."""
    return layout.threads or max(1, len(layout.processors) // (layout.prefill + layout.decode))


def cores_of(layout: ClusterLayout, service: str, number: int) -> tuple[int, ...]:
    """Processors that a worker's compute threads have for themselves; none if there are not enough for all workers, and
    for those that the layout did not have from the start."""
    threads = threads_of(layout)
    if number >= (layout.decode if service == "decode" else layout.prefill):
        return ()
    if threads * (layout.prefill + layout.decode) > len(layout.processors):
        return ()
    first = (number if service == "decode" else layout.decode + number) * threads
    return layout.processors[first : first + threads]


def processors_of(layout: ClusterLayout, service: str, number: int) -> tuple[int, ...]:
    """Those a process may run on: a decode worker has its own, and nobody else runs there, so that an answer's next
    token never waits for a prompt; none where that would leave nothing to the others."""
    decoding = {core for each in range(layout.decode) for core in cores_of(layout, "decode", each)}
    rest = tuple(core for core in layout.processors if core not in decoding)
    if not decoding or not rest:
        return ()
    return (service == "decode" and cores_of(layout, service, number)) or rest


def members(layout: ClusterLayout, wiring: Wiring) -> list[Member]:
    """All service processes, in the order in which they are started."""
    counts = {
        "kvstore": layout.kvstore,
        "decode": layout.decode,
        "prefill": layout.prefill,
        "scheduler": layout.scheduler,
        "gateway": 1,
    }
    return [_member(layout, wiring, service, number) for service, count in counts.items() for number in range(count)]


def added(layout: ClusterLayout, wiring: Wiring, service: str, number: int) -> Member:
    """One process more: in the place that its number has in the layout, or beyond that on no core that is decode's."""
    return _member(layout, wiring, service, number)


def _member(layout: ClusterLayout, wiring: Wiring, service: str, number: int) -> Member:
    name = f"{service}-{number}"
    fields = {
        "name": name,
        "listen": f"{LOOPBACK}:0",
        "nats_url": wiring.nats_url,
        "collector": wiring.collector,
        "token": wiring.token,
        "drain_seconds": f"{layout.drain_seconds:g}",
        "exit_with_parent": "true",
    }
    if service == "gateway":
        fields["listen"] = f"{LOOPBACK}:{layout.grpc_port}"
        fields["http_listen"] = f"{LOOPBACK}:{layout.http_port}"
    if service == "kvstore" and layout.arena_bytes:
        fields["capacity_bytes"] = str(layout.arena_bytes)
    if service in ("gateway", "prefill", "decode"):
        fields["model"] = str(layout.model)
    if service in ("prefill", "decode"):
        fields["threads"] = str(threads_of(layout))
        fields["cores"] = json.dumps(cores_of(layout, service, number))
        fields.update(layout.engine)
    for whose in (service, name):
        fields.update(layout.fields.get(whose, {}))
    prefix = f"DIPTYCH_{service.upper()}__"
    environment = {prefix + field.upper(): value for field, value in fields.items()}
    return Member(service, name, environment, processors_of(layout, service, number))
