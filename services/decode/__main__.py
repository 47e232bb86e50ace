"""Wires the decode worker, top to bottom."""

import asyncio

from services.core.batcher import Batcher
from services.decode.fetching import Fetching
from services.decode.settings import Settings
from services.engine.load import EngineSettings, load_engine
from services.engine.warm_up import warm_up
from services.modelfiles.prepared import PreparedModel
from services.pb import session_pb2
from services.runtime.desk import Desk
from services.runtime.kv_client import KVClient
from services.runtime.process import Process, run
from services.runtime.server import Parts, serving
from services.runtime.session import PROTOCOL, Terms
from services.runtime.session_server import SERVICE, SessionServer
from services.runtime.step_loop import StepLoop
from services.runtime.store_watch import StoreWatch


async def main(process: Process[Settings]) -> None:
    settings, identity = process.settings, process.identity
    prepared = await asyncio.to_thread(PreparedModel.open, settings.model)
    engine_settings = EngineSettings(settings.num_blocks, settings.threads, settings.block_size)
    engine = await asyncio.to_thread(load_engine, prepared, engine_settings)
    cost = await asyncio.to_thread(warm_up, engine.runner, engine.config.context)
    batcher = Batcher(settings.limits(engine.config, cost), engine.fingerprint)
    loop = StepLoop(batcher, engine.runner, process.metrics, process.faults, seam="decode.step")

    hello = session_pb2.Hello(
        protocol=PROTOCOL,
        name=identity.name,
        incarnation=identity.incarnation,
        fingerprint=prepared.digest,
        format=str(engine.format),
    )
    terms = Terms(hello, settings.session_timeout, process.faults)
    client = KVClient(engine.cache, terms, settings.token.get_secret_value(), process.telemetry)
    stores = StoreWatch(process.bus, client.links, settings.kvstores)
    desk = Desk(loop, Fetching(client, loop, process.telemetry), process.telemetry)
    sessions = SessionServer(terms, desk)

    parts = Parts(
        register=[sessions.register],
        services=[SERVICE],
        holdings=lambda: desk.holdings() + client.holdings(),
        load=loop.load,
        peers=client.links.peers,
        model=prepared.name,
        fingerprint=prepared.digest,
        format=str(engine.format),
        idle=desk.idle,
    )
    async with client, serving(process, parts) as server:
        await server.live(loop.run(desk), stores.keep())


if __name__ == "__main__":
    run("decode", Settings, main)
