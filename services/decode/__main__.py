"""Wires the decode worker, top to bottom."""

import asyncio
import logging

from services.decode.fetching import Fetching
from services.decode.settings import Settings
from services.engine.load import load_engine
from services.engine.warm_up import warm_up
from services.modelfiles.prepared import PreparedModel
from services.runtime.kv_client import KVClient
from services.runtime.process import Process, run
from services.runtime.step_loop import StepLoop
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
    settings = process.settings

    def duty(client: KVClient, loop: StepLoop) -> Fetching:
        return Fetching(
            client,
            loop,
            process.telemetry,
            prefix_fetch=settings.prefix_fetch,
            publish_answers=settings.publish_answers,
        )

    await serve_worker(process, engine, duty)


if __name__ == "__main__":
    run("decode", Settings, main)
