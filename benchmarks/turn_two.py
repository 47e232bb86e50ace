"""Time to the first token of a chat's turn two, over that of a cold prompt as long: on the prefill worker that had turn
one, and on another, which has to fetch it from the store.

    .venv/bin/python benchmarks/turn_two.py MODEL --json

Chats of their own prompts on one cluster with two prefill workers: turn one of each; then of each a cold turn two
(under another cache salt) and a warm one, in turn; then one of the workers is killed, and the chats it had go on.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median

from services.cli.cluster import LocalCluster
from services.cli.layout import ClusterLayout
from services.pb import inference_pb2, inference_pb2_grpc
from services.runtime import dial

PROMPT, ANSWER, MORE = 1000, 40, 20
SETTLE_SECONDS = 0.5
"""Facts of what is kept reach the scheduler ten times a second."""


@dataclass(frozen=True)
class Turn:
    """One answer."""

    ids: list[int]
    seconds: float
    """To the first token, at the client."""
    cached: int
    prefill: str


def request_of(ids: list[int], tokens: int, salt: str = "") -> inference_pb2.GenerateRequest:
    request = inference_pb2.GenerateRequest(cache_salt=salt)
    request.token_ids.ids.extend(ids)
    request.stopping.max_tokens = tokens
    request.stopping.ignore_eos = True
    return request


async def turn(stub: inference_pb2_grpc.InferenceStub, request: inference_pb2.GenerateRequest) -> Turn:
    began, first, ids = time.perf_counter(), 0.0, []
    async for message in stub.Generate(request, timeout=120):
        first = first or time.perf_counter() - began
        ids.extend(message.token_ids)
        done = message.done
    record = await stub.GetRequest(inference_pb2.GetRequestRequest(request_id=done.request_id))
    return Turn(ids, first, done.usage.cached_tokens, record.decisions[-1].prefill)


@dataclass
class Chat:
    """One conversation so far."""

    known: list[int]
    prefill: str


async def begun(stub: inference_pb2_grpc.InferenceStub, random: Random) -> Chat:
    prompt = words(random, PROMPT)
    one = await turn(stub, request_of(prompt, ANSWER))
    return Chat([*prompt, *one.ids], one.prefill)


async def measure(model: Path, repeats: int) -> dict[str, object]:
    layout = ClusterLayout(model=model, prefill=2, fields={"scheduler": {"split": "always"}}, drain_seconds=2.0)
    with tempfile.TemporaryDirectory(prefix="diptych-bench-") as directory:
        async with (
            LocalCluster(layout, Path(directory), os.environ) as cluster,
            dial.channel(cluster.gateway.address) as channel,
        ):
            found = await turns(cluster, inference_pb2_grpc.InferenceStub(channel), repeats)
    cold = median(found["cold"])
    ratios = {f"{name}_over_cold": median(found[name]) / cold for name in ("same", "other") if found[name]}
    return {"tokens": PROMPT, "cold_seconds": cold, **ratios, "seconds": found}


async def turns(cluster: LocalCluster, stub: inference_pb2_grpc.InferenceStub, repeats: int) -> dict[str, list[float]]:
    """Seconds to the first token of each turn two, by where it went."""
    random = Random(0)
    found: dict[str, list[float]] = {"cold": [], "same": [], "other": []}
    chats = [await begun(stub, random) for _ in range(repeats)]
    await asyncio.sleep(SETTLE_SECONDS)
    for number, chat in enumerate(chats):
        cold = await turn(stub, request_of([*chat.known, *words(random, MORE)], 4, f"cold-{number}"))
        found["cold"].append(cold.seconds)
        warm = await turn(stub, request_of([*chat.known, *words(random, MORE)], 4))
        found["same" if warm.prefill == chat.prefill else "other"].append(warm.seconds)
    names = {cluster.announcement(name).address: name for name in ("prefill-0", "prefill-1")}
    gone = chats[0].prefill
    cluster.processes[names[gone]].kill()
    await asyncio.sleep(SETTLE_SECONDS)
    for chat in chats:
        if chat.prefill == gone:
            found["other"].append((await turn(stub, request_of([*chat.known, *words(random, MORE)], 4))).seconds)
    return found


def words(random: Random, count: int) -> list[int]:
    return random.choices(range(100, 20_000), k=count)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("model", type=Path, help="a prepared model directory")
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    asked = parser.parse_args()
    found = asyncio.run(measure(asked.model, asked.repeats))
    if asked.json:
        print(json.dumps(found, indent=2))
        return
    for name, value in found.items():
        if isinstance(value, float):
            print(f"{name:>18} {value:8.3f}")


if __name__ == "__main__":
    main()
