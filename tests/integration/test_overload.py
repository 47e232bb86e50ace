"""Three times the capacity, over real sessions: refused ones hear it at once, the important do not feel it."""

import asyncio
from dataclasses import dataclass, replace

from services.core.errors import Overloaded, QueueTimeout
from tests.support.scripted_cluster import LIMITS, Answer, ScriptedCluster, scripted_cluster

SECONDS, TIMEOUT, TOKENS = 4.0, 1.0, 20
SETTINGS = {
    "queue_timeout": TIMEOUT,
    "max_queue": 64,
    "classes": {"gold": {"level": 1, "weight": 8}, "batch": {"level": -1}},
}


@dataclass
class Outcome:
    answer: Answer
    seconds: float


async def outcome(answer: Answer) -> Outcome:
    clock = asyncio.get_running_loop().time
    began = clock()
    await answer.end()
    return Outcome(answer, clock() - began)


async def capacity(cluster: ScriptedCluster) -> float:
    """Requests a second, with all places taken all the time."""
    clock = asyncio.get_running_loop().time
    began = clock()
    ends = [cluster.caller.start(range(3, 20), TOKENS, client=f"c{n}").end() for n in range(24)]
    await asyncio.gather(*ends)
    return 24 / (clock() - began)


async def flood(cluster: ScriptedCluster, rate: float) -> dict[str, list[Outcome]]:
    """Requests at even times, whatever becomes of those before; every eighth of them is gold."""
    clock = asyncio.get_running_loop().time
    began, tasks = clock(), []
    for number in range(int(rate * SECONDS)):
        await asyncio.sleep(max(began + number / rate - clock(), 0.0))
        name = "batch" if number % 8 else "gold"
        answer = cluster.caller.start(range(3, 20), TOKENS, traffic_class=name, client=f"c{number % 5}")
        tasks.append((name, asyncio.create_task(outcome(answer))))
    return {kind: [await task for name, task in tasks if name == kind] for kind in ("gold", "batch")}


def p95(seconds: list[float]) -> float:
    return sorted(seconds)[len(seconds) * 95 // 100]


async def test_three_times_the_capacity() -> None:
    slow = {"decode": {"decode.step": 0.01}}
    limits = replace(LIMITS, max_running=4)
    async with scripted_cluster(
        prefill=0, limits=limits, faults=slow, queue_timeout=TIMEOUT, scheduling=SETTINGS
    ) as made:
        rate = await capacity(made)
        found = await flood(made, 3 * rate)
    refused = [each for each in found["batch"] if isinstance(each.answer.error, Overloaded | QueueTimeout)]
    served = [each for each in found["batch"] if each.answer.error is None]
    gold = [each.seconds for each in found["gold"]]
    at_arrival = p95([each.seconds for each in refused])
    print(f"capacity {rate:.1f}/s; {len(refused)} refused, p95 {at_arrival * 1000:.0f} ms; gold p95 {p95(gold):.2f} s")
    assert [each.answer.error for each in found["gold"]] == [None] * len(gold), "the important class is unharmed"
    # Half, for callers and workers share one event loop with it all.
    assert len(served) > 0.5 * rate * SECONDS * (1 - 3 / 8), "places are not left empty by refusing"
    assert len(refused) > len(served)
    assert at_arrival < TIMEOUT / 4, "who is refused does not wait to hear it"
    assert all(each.answer.error.retry_after > 0 for each in refused if each.answer.error)
    assert max(each.seconds for each in served) < TIMEOUT + 20 * TOKENS / rate
