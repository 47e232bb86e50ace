"""Seconds of one placement over pools of different sizes, in views as a busy cluster has them."""

import random
import statistics
import time

from services.core.block_facts import Facts, ShortHash, Stock, short
from services.core.blocks import BlockNames
from services.core.ids import RequestId, RequestKey
from services.core.request import Request, Sampling, Stopping
from services.core.step_cost import StepCost
from services.scheduler.asking import Asking, Rules
from services.scheduler.cluster_view import ClusterView
from services.scheduler.policies import POLICIES
from services.scheduler.worker_status import WorkerStatus

SEED = 20_26
FINGERPRINT = "ab" * 32
FORMAT = "float16/kt1/b16/l30/h3x64"
PROMPT_TOKENS = 512
PROMPTS = 50
"""Different ones, so that later requests find blocks in caches."""


def prompt(number: int) -> tuple[int, ...]:
    return tuple(random.Random(number % PROMPTS).choices(range(50_000), k=PROMPT_TOKENS))


def view_of(workers: int, stores: int) -> ClusterView:
    """One prefill worker to three decode workers, each with its own speed, load and near store, all stores in common;
    every store but an only one has beginnings of a third of the prompts."""
    rng = random.Random(SEED)
    names = [f"k{number}:1" for number in range(stores)]
    view = ClusterView(kvstores={name: name for name in names})
    for number in range(workers):
        cost = StepCost(rng.uniform(2e-3, 4e-3), rng.uniform(2e-4, 5e-4), 1e-8, 1e-7)
        service = "decode" if number % 4 else "prefill"
        status = WorkerStatus(
            address=f"10.0.{number // 250}.{number % 250}:1",
            name=f"{service}-{number}",
            service=service,
            fingerprint=FINGERPRINT,
            format=FORMAT,
            is_ready=True,
            running=rng.randrange(48),
            waiting=0,
            max_running=64,
            blocks_total=8192,
            blocks_used=rng.randrange(6000),
            waiting_tokens=rng.randrange(4000),
            stores=frozenset(names),
            near_stores=frozenset({names[number % stores]}),
            cost=cost,
            context_tokens=rng.randrange(40_000),
        )
        view.update(status, 0.0)
    for name in names if stores > 1 else ():
        held: set[ShortHash] = set()
        for number in rng.sample(range(PROMPTS), PROMPTS // 3):
            chain = BlockNames(b"").of(prompt(number), bytes.fromhex(FINGERPRINT), 16)
            held.update(map(short, chain[: rng.randint(1, len(chain))]))
        view.prefixes.hear(Facts(Stock(name, name, "life", FINGERPRINT, FORMAT), 1, tuple(held)))
    return view


def decision_seconds(workers: int, requests: int, stores: int = 1) -> tuple[float, float]:
    """(median, 95th percentile) of a placement with the count of the one before, block names known."""
    view, place = view_of(workers, stores), POLICIES["ours"]
    took = []
    for number in range(requests):
        tokens = prompt(number)
        request = Request(RequestKey(RequestId(f"r{number}")), tokens, Sampling(), Stopping(128))
        names = BlockNames(b"")
        names.of(tokens, bytes.fromhex(FINGERPRINT), 16)
        now = number / 100
        begin = time.perf_counter()
        placement = place(Asking(request, view, names, now, Rules()), FINGERPRINT)
        took.append(time.perf_counter() - begin)
        if placement is not None:
            view.placed_on(request, placement.record, now, placement.hashes)
            view.over(RequestKey(RequestId(f"r{number - 64}")), now, 100)
    return statistics.median(took), statistics.quantiles(took, n=20)[-1]
