"""Wires the decode worker, top to bottom."""

import asyncio
import logging

from services.decode.fetching import Fetching
from services.decode.settings import Settings
from services.engine.load import load_engine
from services.engine.warm_up import warm_up
from services.modelfiles.prepared import PreparedModel
from services.runtime.process import Process, run
from services.runtime.worker import WorkerEngine, serve_worker

log = logging.getLogger(__name__)


def loaded(settings: Settings) -> WorkerEngine:
    """The engine, ready to compute its first step as quickly as its next."""
    prepared = PreparedModel.open(settings.model)
    engine = load_engine(prepared, settings.of_engine)
    cost = warm_up(engine.runner, engine.config.context)
    log.info("a step costs %s", cost)
    limits = settings.limits(engine.config, cost)
    runner = engine.runner
    return WorkerEngine(runner, runner.kv, limits, prepared.name, prepared.digest, str(engine.format), runner.memory)


async def main(process: Process[Settings]) -> None:
    engine = await asyncio.to_thread(loaded, process.settings)
    await serve_worker(process, engine, lambda client, loop: Fetching(client, loop, process.telemetry))


if __name__ == "__main__":
    run("decode", Settings, main)
