"""Three times what a local cluster can serve, over HTTP: those let in keep the objective, the others hear so at once.

    .venv/bin/python benchmarks/overload.py --json

One prefill worker beside all other processes on one core, one decode worker on another. Two traffic classes: `gold` is
an eighth of what comes, `batch` the rest. First as many ask as there are places, which tells the capacity; then `gold`
comes alone, at the rate at which it comes later; then both, at three times the capacity. As JSON:

    capacity_per_second  requests that end in a second while more wait than can be served
    objective            seconds: `ttft`, and `itl`, the mean between the tokens of an answer
    alone                of `gold` by itself, as below
    classes              name -> asked, served, refused, in_objective (share of the served), ttft and itl percentiles
    refusal_seconds      p50, p95 and worst of all refusals: from the request to the answer that says so
    most_waiting         largest number of requests that the scheduler had waiting, and its limit
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from peers.field import Model
from peers.openai_client import OpenAIClient, ServerRefused
from peers.streams import Stream
from peers.texts import text_prompts
from services.cli.cluster import LocalCluster
from services.cli.layout import ClusterLayout

CORES = (1, 0)
"""Of decode and prefill."""
PLACES, QUEUE, QUEUE_SECONDS = 8, 64, 1.5
"""Of the decode worker and of the scheduler."""
HEAD_START = 0.25
"""Seconds that a level is worth on the workers, where `gold` is two above `batch`."""
TTFT_SECONDS, ITL_SECONDS = 2.5, 0.1
"""The objective: a wait within the queue's limit, then a prompt behind those of all other places."""
PROMPT, ANSWER = (64, 192), (32, 64)
"""Tokens; lengths are drawn evenly between the two."""
OVERLOAD, GOLD_SHARE = 3.0, 1 / 8
MOST_REQUESTS = 3000
LOOK_SECONDS = 0.1
FoundT = TypeVar("FoundT")
TIERS = {"priority": "gold", "flex": "batch"}
FIELDS = {
    "gateway": {"service_tiers": json.dumps(TIERS)},
    "prefill": {"head_start": str(HEAD_START)},
    "decode": {"head_start": str(HEAD_START), "max_running": str(PLACES)},
    "scheduler": {
        "max_queue": str(QUEUE),
        "queue_timeout": str(QUEUE_SECONDS),
        "classes": json.dumps(
            {
                "gold": {"level": 1, "weight": 8, "queue_timeout": TTFT_SECONDS},
                "batch": {"level": -1, "max_ttft": TTFT_SECONDS},
            }
        ),
    },
}


@dataclass
class Outcomes:
    """What became of the requests of one class."""

    served: list[Stream] = field(default_factory=list)
    refusals: list[float] = field(default_factory=list)
    """Seconds until each was told."""

    def figures(self) -> dict[str, Any]:
        kept = sum(each.ttft <= TTFT_SECONDS and itl_of(each) <= ITL_SECONDS for each in self.served)
        return {
            "asked": len(self.served) + len(self.refusals),
            "served": len(self.served),
            "refused": len(self.refusals),
            "in_objective": kept / max(len(self.served), 1),
            "ttft": percentiles([each.ttft for each in self.served]),
            "itl": percentiles([itl_of(each) for each in self.served]),
            "refusal": percentiles(self.refusals),
        }


class Asker:
    """Sends requests of one length distribution to a gateway, by class."""

    def __init__(self, clients: dict[str, OpenAIClient], prompts: Iterator[Sequence[int]], draw: Random) -> None:
        """`clients` by class; each prompt is used once, so that none is in a cache."""
        self._clients = clients
        self._prompts = prompts
        self._draw = draw

    async def one(self, name: str, into: Outcomes) -> None:
        """One request, to its end."""
        prompt, tokens = next(self._prompts), self._draw.randint(*ANSWER)
        asked = time.monotonic()
        try:
            into.served.append(await self._clients[name].complete(prompt, tokens))
        except ServerRefused:
            into.refusals.append(time.monotonic() - asked)

    async def flood(self, rates: dict[str, float], seconds: float) -> dict[str, Outcomes]:
        """Independent clients of each class (a Poisson process), whatever becomes of those before."""
        found = {name: Outcomes() for name in rates}
        async with asyncio.TaskGroup() as group:
            for name, rate in rates.items():
                group.create_task(self._arrivals(name, rate, seconds, found[name]))
        return found

    async def capacity(self, seconds: float) -> float:
        """Requests a second while as many ask as there are places."""
        found = Outcomes()
        began = time.monotonic()

        async def again_and_again() -> None:
            while time.monotonic() < began + seconds:
                await self.one("gold", found)

        await asyncio.gather(*(again_and_again() for _ in range(PLACES)))
        return len(found.served) / (time.monotonic() - began)

    async def _arrivals(self, name: str, rate: float, seconds: float, into: Outcomes) -> None:
        began = time.monotonic()
        at = self._draw.expovariate(rate)
        async with asyncio.TaskGroup() as group:
            while at < seconds:
                await asyncio.sleep(max(began + at - time.monotonic(), 0.0))
                group.create_task(self.one(name, into))
                at += self._draw.expovariate(rate)


def itl_of(stream: Stream) -> float:
    """Mean seconds between the tokens of an answer."""
    return (stream.arrivals[-1] - stream.arrivals[0]) / max(stream.tokens - 1, 1)


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    if len(seconds) < 2:
        return {}
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98], "worst": max(seconds)}


async def measure(model: Model, directory: Path, seconds: float, seed: int) -> dict[str, Any]:
    """Raises CommandError if there is no cluster."""
    draw = Random(seed)
    tokenizer = model.prepared.tokenizer()
    prompts = iter([text_prompts(tokenizer, 1, draw.randint(*PROMPT), draw)[0] for _ in range(MOST_REQUESTS)])
    layout = ClusterLayout(model=model.prepared.directory, threads=1, processors=CORES, fields=FIELDS)
    async with LocalCluster(layout, directory, os.environ) as cluster:
        os.sched_setaffinity(0, {CORES[1]})
        address = cluster.gateway.http_address
        async with (
            OpenAIClient(address, {"service_tier": "priority"}) as gold,
            OpenAIClient(address, {"service_tier": "flex"}) as batch,
        ):
            asker = Asker({"gold": gold, "batch": batch}, prompts, draw)
            await asker.capacity(2.0)
            capacity = await asker.capacity(seconds)
            rate = OVERLOAD * capacity
            rates = {"gold": GOLD_SHARE * rate, "batch": (1 - GOLD_SHARE) * rate}
            alone = await asker.flood({"gold": rates["gold"]}, seconds)
            both, most = await watched(cluster, asker.flood(rates, 2 * seconds))
    return {
        "capacity_per_second": capacity,
        "objective": {"ttft": TTFT_SECONDS, "itl": ITL_SECONDS},
        "alone": alone["gold"].figures(),
        "classes": {name: each.figures() for name, each in both.items()},
        "refusal_seconds": percentiles([seconds for each in both.values() for seconds in each.refusals]),
        "most_waiting": {"seen": most, "limit": QUEUE},
    }


async def watched(cluster: LocalCluster, flood: Awaitable[FoundT]) -> tuple[FoundT, int]:
    """With the most requests that the scheduler told of as waiting meanwhile."""
    running, most = asyncio.ensure_future(flood), 0
    while not running.done():
        most = max(most, cluster.announcement("scheduler-0").load.waiting)
        await asyncio.wait([running], timeout=LOOK_SECONDS)
    return await running, most


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", default="smollm2", help="smollm2, or the path of a GGUF file")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each part; the overload lasts twice as long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    asked = parser.parse_args()
    cache = Path(os.environ.get("DIPTYCH_CACHE") or "~/.cache/diptych").expanduser()
    with tempfile.TemporaryDirectory(prefix="diptych-overload-") as directory:
        model = Model.of(asked.model, cache)
        found = asyncio.run(measure(model, Path(directory), asked.seconds, asked.seed))
    print(json.dumps(found, indent=2) if asked.json else text(found))


def text(found: dict[str, Any]) -> str:
    lines = [f"capacity {found['capacity_per_second']:.1f}/s, then {OVERLOAD:g} times that"]
    for name, each in {"gold alone": found["alone"], **found["classes"]}.items():
        shown = f"{name}: {each['served']} of {each['asked']} served, {each['in_objective']:.1%} within the objective"
        if each["ttft"]:
            shown += f"; TTFT p95 {each['ttft']['p95']:.2f} s, ITL p95 {each['itl']['p95'] * 1000:.0f} ms"
        lines.append(shown)
    if refusal := found["refusal_seconds"]:
        lines.append(f"refusals: p95 {refusal['p95'] * 1000:.0f} ms, worst {refusal['worst'] * 1000:.0f} ms")
    lines.append(f"at most {found['most_waiting']['seen']} waited, of {found['most_waiting']['limit']}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
