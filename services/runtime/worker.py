"""A worker around an engine: batch, step loop, desk, sessions with kvstores; the same for prefill and decode.

Must not know what the engine is. What differs between the two kinds of worker is the duty.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from services.core.batch_limits import BatchLimits
from services.core.batcher import Batcher
from services.core.memory import EngineMemory
from services.core.plan import StepPlan
from services.core.request import Role
from services.pb import session_pb2
from services.runtime.desk import Desk
from services.runtime.duty import Duty
from services.runtime.kv_client import KVClient, Reach
from services.runtime.kv_way import BlockBytes
from services.runtime.letters import Letters
from services.runtime.process import Process
from services.runtime.server import Parts, serving
from services.runtime.session import PROTOCOL, Terms
from services.runtime.session_server import SERVICE, SessionServer
from services.runtime.step_loop import Runner, StepLoop
from services.runtime.store_watch import StoreWatch
from services.runtime.watchdog import Watchdog
from services.runtime.worker_settings import WorkerSettings

SEAMS = {"written": "kv.written"}
"""Fault seams on the way to a kvstore."""


@dataclass(frozen=True, slots=True)
class WorkerEngine:
    """An engine that is loaded and warm, and what others must know of it."""

    runner: Runner
    kv: BlockBytes
    limits: BatchLimits
    model: str
    digest: str
    """Of weights, configuration and tokenizer, in hexadecimal digits; seeds the block hashes."""
    format: str
    """Of a block of KV."""
    memory: Callable[[], EngineMemory] = EngineMemory
    """What is resident of it now; called on any thread."""


WorkerSettingsT = TypeVar("WorkerSettingsT", bound=WorkerSettings)
MakeDuty = Callable[[KVClient, StepLoop], Duty]


async def serve_worker(process: Process[WorkerSettingsT], engine: WorkerEngine, make_duty: MakeDuty) -> None:
    """Serves until the process is told to stop. Raises EngineFault if the engine breaks."""
    settings, identity = process.settings, process.identity
    batcher = Batcher(engine.limits, bytes.fromhex(engine.digest), copied=frozenset(Role))
    loop = StepLoop(batcher, engine.runner, process.metrics, process.faults, seam=f"{identity.service}.step")
    hello = session_pb2.Hello(
        protocol=PROTOCOL,
        name=identity.name,
        incarnation=identity.incarnation,
        fingerprint=engine.digest,
        format=engine.format,
    )
    terms = Terms(hello, settings.session_timeout, process.faults, SEAMS)
    reach = Reach(settings.token.get_secret_value(), attach=settings.attach)
    client = KVClient(engine.kv, terms, process.telemetry, process.metrics, reach)
    stores = StoreWatch(process.bus, client.links, settings.kvstores)
    desk = Desk(loop, make_duty(client, loop), process.telemetry, Letters(settings.event_window))

    def predicted(plan: StepPlan) -> float:
        return batcher.cost.of((len(chunk.tokens), chunk.start) for chunk in plan.chunks)

    watchdog = Watchdog(settings.hung_step_seconds, predicted)
    parts = Parts(
        register=[SessionServer(terms, desk).register],
        services=[SERVICE],
        holdings=lambda: desk.holdings() + client.holdings(),
        load=loop.load,
        peers=client.links.peers,
        stores=client.links.stores,
        near_stores=client.near_stores,
        memory=engine.memory,
        model=engine.model,
        fingerprint=engine.digest,
        format=engine.format,
        idle=desk.idle,
        hand_back=desk.hand_back,
    )
    async with client, serving(process, parts) as server:
        await server.live(loop.run(desk), stores.keep(), watchdog.run(lambda: loop.computing))
