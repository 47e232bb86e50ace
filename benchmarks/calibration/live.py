"""Requests to a live cluster at times that do not wait for answers: one prefill worker on core 0, one decode worker on
core 1, everything else beside prefill."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from calibration.observed import Observed, Served, WorkerFigures
from peers.openai_client import OpenAIClient
from peers.texts import text_prompts
from services.cli.cluster import LocalCluster
from services.cli.layout import ClusterLayout
from services.core.step_cost import StepCost
from services.modelfiles.prepared import PreparedModel

CORES = (1, 0)
"""Of decode and prefill."""
PROMPTS = (48, 320)
ANSWERS = (16, 64)
"""Tokens; lengths are drawn evenly between the two."""
WARM_UP_REQUESTS = 6
SETTLING_SECONDS = 1.0
"""A worker tells its load twice a second."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked for."""

    model: PreparedModel
    loads: Sequence[float]
    """Shares of what prefill alone can compute; the first is the one that is fitted."""
    seconds: float
    """Of the load that is fitted; the others last as many requests, on the average."""
    seed: int
    directory: Path
    say: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Asked:
    at: float
    prompt: list[int]
    answer: int


async def observed(plan: Plan) -> Observed:
    """Starts a cluster, asks it, stops it. Raises CommandError or ServerRefused."""
    layout = ClusterLayout(
        model=plan.model.directory, threads=1, processors=CORES, fields={"scheduler": {"split": "always"}}
    )
    async with LocalCluster(layout, plan.directory, os.environ) as cluster:
        os.sched_setaffinity(0, {CORES[1]})
        plan.say("the cluster is ready")
        async with OpenAIClient(cluster.gateway.http_address, {}) as client:
            draw = Random(plan.seed)
            await _served(client, _requests(plan, draw, 3.0, WARM_UP_REQUESTS / 3.0))
            await asyncio.sleep(SETTLING_SECONDS)
            rate = 1 / _prefill_seconds(_figures(cluster, "prefill-0"))
            loads: dict[float, Sequence[Served]] = {}
            workers: dict[str, WorkerFigures] = {}
            for load in plan.loads:
                seconds = plan.seconds * plan.loads[0] / load
                loads[load] = await _served(client, _requests(plan, draw, load * rate, seconds))
                plan.say(f"load {load:g}: {len(loads[load])} requests at {load * rate:.2f}/s")
                if not workers:
                    workers = {each: _figures(cluster, f"{each}-0") for each in ("prefill", "decode")}
    config = plan.model.config
    block_size = 16
    return Observed(config.layers, config.kv_heads, config.head_dim, block_size, workers, loads)


def _figures(cluster: LocalCluster, name: str) -> WorkerFigures:
    load = cluster.announcement(name).load
    return WorkerFigures(
        load.cost_fixed,
        load.cost_per_token,
        load.cost_per_token_context,
        load.cost_per_context,
        load.blocks_total,
        load.max_running,
        load.step_seconds,
    )


def _prefill_seconds(worker: WorkerFigures) -> float:
    """Of a prompt of middling length."""
    cost = StepCost(worker.fixed, worker.per_token, worker.per_token_context, worker.per_context)
    return cost.of([(sum(PROMPTS) // 2, 0)])


def _requests(plan: Plan, draw: Random, rate: float, seconds: float) -> list[_Asked]:
    """Arrivals as of independent clients (a Poisson process), prompts that share no beginning."""
    tokenizer = plan.model.tokenizer()
    asked: list[_Asked] = []
    at = 0.0
    while at < seconds:
        (prompt,) = text_prompts(tokenizer, 1, draw.randint(*PROMPTS), draw)
        asked.append(_Asked(at, prompt, draw.randint(*ANSWERS)))
        at += draw.expovariate(rate)
    return asked


async def _served(client: OpenAIClient, requests: Sequence[_Asked]) -> list[Served]:
    """In the order of arrival; returns when the last answer is complete."""
    began = time.monotonic()
    return await asyncio.gather(*(_one(client, request, began) for request in requests))


async def _one(client: OpenAIClient, request: _Asked, began: float) -> Served:
    await asyncio.sleep(max(began + request.at - time.monotonic(), 0.0))
    stream = await client.complete(request.prompt, request.answer)
    gaps = max(stream.tokens - 1, 1)
    itl = (stream.arrivals[-1] - stream.arrivals[0]) / gaps
    return Served(stream.asked - began, len(request.prompt), stream.tokens, stream.ttft, itl)
