"""Three times as many requests as can be served, on virtual time: what admission makes of it."""

import heapq
from collections import defaultdict
from dataclasses import dataclass, field
from random import Random

import pytest

from services.core.blocks import BlockNames
from services.core.errors import NeverFits, Overloaded
from services.core.ids import RequestId, RequestKey
from services.core.request import Request, Sampling, Stopping
from services.scheduler.admission import Queue
from services.scheduler.classes import TrafficClass
from services.scheduler.cluster_view import ClusterView
from services.scheduler.entrance import Entrance
from tests.unit.scheduler.test_policy import view, worker

PLACES, STAY, RATE, SECONDS, TIMEOUT = 20, 2.0, 30.0, 150.0, 5.0
CLASSES = [TrafficClass("gold", weight=4.0, level=1), TrafficClass("batch", level=-1)]


@dataclass
class Run:
    """What became of the requests of each class; nothing of the first fifth of the time counts."""

    waits: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    refused: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    in_vain: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    longest_queue: int = 0
    occupied: float = 0.0
    """Seconds, of all places together."""


def overloaded(seed: int, max_queue: int) -> Run:
    """Poisson arrivals, some of them gold and the rest plain and batch; stays of exponential length."""
    random, run = Random(seed), Run()
    seen: ClusterView = view(worker("d", max_running=PLACES))
    entrance = Entrance(Queue(max_queue, TIMEOUT, CLASSES), seen)
    ends: list[tuple[float, int, Request]] = []
    came: dict[RequestKey, float] = {}
    now, number, arrival = 0.0, 0, 0.0
    while now < SECONDS:
        before, now = now, min([arrival, *(end for end, *_ in ends[:1]), entrance.queue.next_expiry() or SECONDS])
        counts = now > SECONDS / 5
        run.occupied += counts * (now - before) * len(ends)
        while ends and ends[0][0] <= now:
            _, _, done = heapq.heappop(ends)
            entrance.left(done.key, done, now, is_over=True)
        if now >= arrival:
            number += 1
            arrival = now + random.expovariate(RATE)
            name = random.choices(["gold", "", "batch"], [0.15, 0.4, 0.45])[0]
            key = RequestKey(RequestId(f"r{number}"))
            asked = Request(key, (1,), Sampling(), Stopping(4), client=f"c{number % 5}", traffic_class=name)
            came[key] = now
            try:
                entrance.enter(asked, BlockNames(b""), "", now)
            except (Overloaded, NeverFits):
                run.refused[name] += counts
        for late, error in entrance.queue.expired(now):
            gave_way = isinstance(error, Overloaded)
            run.in_vain[late.traffic_class] += counts and not gave_way
            run.refused[late.traffic_class] += counts and gave_way
        for head in entrance.candidates(now):
            if len(ends) < PLACES:
                entrance.take(head, 0)
                entrance.began(head.key, head, now)
                heapq.heappush(ends, (now + random.expovariate(1 / STAY), int(head.key.request_id[1:]), head))
                if counts:
                    run.waits[head.traffic_class].append(now - came[head.key])
        run.longest_queue = max(run.longest_queue, len(entrance.queue))
    return run


@pytest.mark.parametrize("max_queue", [16, 1000])
@pytest.mark.parametrize("seed", [3, 4])
def test_three_times_the_capacity(max_queue: int, seed: int) -> None:
    run = overloaded(seed, max_queue)
    refused, in_vain = sum(run.refused.values()), sum(run.in_vain.values())
    gold = sorted(run.waits["gold"])
    assert run.longest_queue <= min(max_queue, RATE * TIMEOUT), "no queue grows without bound"
    assert run.occupied > 0.98 * 0.8 * SECONDS * PLACES, "no place stays empty"
    assert in_vain < 0.05 * (refused + in_vain), "who is refused hears it at arrival"
    assert run.refused["gold"] + run.in_vain["gold"] == 0
    assert gold[len(gold) * 95 // 100] < TIMEOUT / 3
    assert max(wait for waits in run.waits.values() for wait in waits) <= TIMEOUT
