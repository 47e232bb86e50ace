"""Wires the prefill worker, top to bottom."""

import asyncio
import logging

from services.engine.load import load_engine
from services.engine.warm_up import warm_up
from services.modelfiles.prepared import PreparedModel
from services.prefill.publishing import Publishing
from services.prefill.settings import Settings
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
    is_fetching = process.settings.prefix_fetch
    await serve_worker(process, engine, lambda client, loop: Publishing(client, loop, prefix_fetch=is_fetching))


if __name__ == "__main__":
    run("prefill", Settings, main)
