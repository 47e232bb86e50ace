"""Wires the gateway, top to bottom."""

import asyncio

from services.gateway.generations import Generations
from services.gateway.http import http_app
from services.gateway.http_server import bound, http_serving
from services.gateway.records import Records
from services.gateway.schedulers import Schedulers
from services.gateway.served_model import served
from services.gateway.server import SERVICE, Inference
from services.gateway.settings import Settings
from services.modelfiles.prepared import PreparedModel
from services.pb import session_pb2
from services.runtime.process import Process, run
from services.runtime.server import Parts, serving
from services.runtime.session import PROTOCOL, Terms

SEAMS = {"start": "gateway.start"}
"""Fault seams on the way to a scheduler."""


async def main(process: Process[Settings]) -> None:
    settings, identity = process.settings, process.identity
    model = await asyncio.to_thread(lambda: served(PreparedModel.open(settings.model)))
    hello = session_pb2.Hello(
        protocol=PROTOCOL, name=identity.name, incarnation=identity.incarnation, fingerprint=model.digest
    )
    terms = Terms(hello, settings.session_timeout, process.faults, SEAMS)
    schedulers = Schedulers(process.bus, settings.schedulers, terms, settings.token.get_secret_value())
    records = Records(settings.remembered_requests)
    generations = Generations(process, model, schedulers, records)
    inference = Inference(generations, model, records)

    listener = bound(settings.http_listen)
    host, port = listener.getsockname()[:2]
    app = http_app(process, generations, model, is_ready=schedulers.reachable.is_set)
    parts = Parts(
        register=[inference.register],
        services=[SERVICE],
        holdings=generations.holdings,
        load=generations.load,
        peers=schedulers.names,
        model=model.name,
        fingerprint=model.digest,
        http_address=f"{host}:{port}",
        idle=generations.idle,
    )
    async with schedulers, http_serving(app, listener), serving(process, parts) as server:
        await _either(schedulers.reachable, process.stopping)
        await server.live()


async def _either(*events: asyncio.Event) -> None:
    """Waits until one of them is set."""
    waits = [asyncio.create_task(event.wait(), name="wait") for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


if __name__ == "__main__":
    run("gateway", Settings, main)
