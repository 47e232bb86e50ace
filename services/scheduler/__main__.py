"""Wires the scheduler, top to bottom."""

from dataclasses import replace

from services.pb import operations_pb2, session_pb2
from services.runtime.process import Process, run
from services.runtime.server import Parts, serving
from services.runtime.session import PROTOCOL, Terms
from services.runtime.session_server import SERVICE, SessionServer
from services.scheduler.block_watch import BlockWatch
from services.scheduler.cluster_view import ClusterView
from services.scheduler.conductor import Conductor
from services.scheduler.settings import Settings
from services.scheduler.workers import Workers

SEAMS = {"start": "scheduler.start", "first_token": "scheduler.first_token"}
"""Fault seams on the way to a worker."""
STEP = "scheduler.step"
"""The fault seam of every message that is heard."""


async def main(process: Process[Settings]) -> None:
    settings, identity = process.settings, process.identity
    hello = session_pb2.Hello(protocol=PROTOCOL, name=identity.name, incarnation=identity.incarnation)
    conductor = Conductor(process, view := ClusterView())
    terms = Terms(hello, settings.session_timeout, process.faults, step=STEP)
    workers = Workers(process, view, conductor, replace(terms, seams=SEAMS))
    blocks = BlockWatch(process.bus, view, settings.token.get_secret_value())
    sessions = SessionServer(terms, conductor)

    def load() -> operations_pb2.Load:
        waiting = conductor.num_waiting
        running = conductor.num_tickets - waiting
        return operations_pb2.Load(running=running, waiting=waiting, classes=conductor.class_loads())

    parts = Parts(
        register=[sessions.register],
        services=[SERVICE],
        holdings=conductor.holdings,
        load=load,
        peers=workers.peers,
        idle=conductor.idle,
        hand_back=conductor.hand_back,
    )
    async with serving(process, parts) as server:
        await server.live(workers.keep(), blocks.keep())


if __name__ == "__main__":
    run("scheduler", Settings, main)
