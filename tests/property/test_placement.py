"""Placement over random clusters: always room, never a dearer place than another, the same for the same view."""

import random
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.core.block_facts import Facts, Stock, short
from services.core.blocks import BlockNames
from services.core.ids import RequestId, RequestKey
from services.core.request import Request, Sampling, Stopping
from services.core.step_cost import StepCost
from services.scheduler.asking import Rules
from services.scheduler.cluster_view import ClusterView
from services.scheduler.decision import Decision
from services.scheduler.policies import POLICIES
from services.scheduler.policy import MARGIN_SECONDS, MARGIN_SHARE
from services.scheduler.story import Placement
from services.scheduler.worker_status import WorkerStatus
from tests.support.placing import asking, place

FINGERPRINTS = ("ab" * 32, "cd" * 32)
FORMAT = "float16/kt1/b16/l8/h2x64"
STORES = ("k:1", "l:1")
NOW = 100.0
ALWAYS, NEVER = Rules("always"), Rules("never")

costs = st.builds(StepCost, st.floats(0.001, 0.02), st.floats(1e-4, 2e-3), st.floats(0, 1e-6), st.floats(0, 1e-5))
store_sets = st.sets(st.sampled_from(STORES)).map(frozenset)


@st.composite
def workers(draw: st.DrawFn, number: int, service: str) -> WorkerStatus:
    stores = draw(store_sets)
    return WorkerStatus(
        address=f"{service}-{number}:1",
        name=f"{service}-{number}",
        service=service,
        fingerprint=draw(st.sampled_from(FINGERPRINTS)),
        format=FORMAT,
        is_ready=draw(st.integers(0, 9)) > 0,
        running=draw(st.integers(0, 4)),
        waiting=0,
        max_running=4,
        blocks_total=draw(st.sampled_from((40, 400))),
        blocks_used=draw(st.integers(0, 40)),
        waiting_tokens=draw(st.sampled_from((0, 0, 100, 5000))),
        own_tokens=draw(st.sampled_from((0, 0, 500))),
        stores=stores,
        near_stores=draw(store_sets) & stores,
        cost=draw(costs),
        context_tokens=draw(st.integers(0, 2000)),
    )


@st.composite
def clusters(draw: st.DrawFn) -> list[WorkerStatus]:
    prefill = [draw(workers(number, "prefill")) for number in range(draw(st.integers(0, 4)))]
    return prefill + [draw(workers(number, "decode")) for number in range(draw(st.integers(1, 4)))]


requests = st.builds(
    lambda seed, length, most: Request(
        RequestKey(RequestId(f"r{seed}")), tuple(range(length)), Sampling(), Stopping(most)
    ),
    st.integers(0, 99),
    st.integers(1, 500),
    st.integers(1, 200),
)


def view_of(statuses: list[WorkerStatus], seed: int) -> ClusterView:
    """With blocks of the counting prompt in one store and some caches, and places that nobody has reported."""
    rng = random.Random(seed)
    view = ClusterView(kvstores={store: store for store in STORES})
    prompt = tuple(range(500))
    for fingerprint in FINGERPRINTS:
        names = BlockNames(b"").of(prompt, bytes.fromhex(fingerprint), 16)
        held = tuple(map(short, names[: rng.randrange(32)]))
        view.prefixes.hear(Facts(Stock(STORES[0], STORES[0], "life", fingerprint, FORMAT), 1, held))
    for status in statuses:
        view.update(status, NOW - rng.random())
        names = BlockNames(b"").of(prompt, bytes.fromhex(status.fingerprint), 16)
        # Drawn by the worker's name: what one has does not depend on who else is there.
        if (own := random.Random(f"{seed} {status.name}")).random() < 0.5:
            view.estimates.cached.note(status.address, names[: own.randrange(32)], status.blocks_total)
        if own.random() < 0.2:
            view.overloaded.add(status.address)
    return view


def fixed_view(statuses: list[WorkerStatus], seed: int) -> ClusterView:
    """The same, and every worker spoke now."""
    view = view_of(statuses, seed)
    overloaded = set(view.overloaded)
    for status in statuses:
        view.update(status, NOW)
    view.overloaded |= overloaded
    return view


def cost_of(placement: Placement) -> float:
    return sum(candidate.cost for candidate in placement.record.chosen)


@settings(max_examples=60, deadline=None)
@given(clusters(), requests, st.integers(0, 9), st.sampled_from(sorted(POLICIES)))
def test_every_policy_places_where_there_is_room_and_blocks_can_pass(
    statuses: list[WorkerStatus], request_: Request, seed: int, policy: str
) -> None:
    view = view_of(statuses, seed)
    placement = place(asking(request_, view, now=NOW), FINGERPRINTS[0], policy=policy)
    if placement is None:
        return
    assert isinstance(placement, Placement)
    taken = [view.workers[address] for address in (placement.prefill, placement.decode) if address]
    for worker in taken:
        assert worker.is_ready and view.has_room(worker) and worker.fingerprint == FINGERPRINTS[0]
    if placement.is_split:
        assert placement.kvstore in view.stores_of(*taken)
        assert taken[0].blocks_total * 16 >= len(request_.tokens)
        assert nearness(placement.kvstore, taken) == max(nearness(each, taken) for each in view.stores_of(*taken))
    assert placement.record.policy == policy
    assert placement.record.computes == (placement.prefill or placement.decode)


def nearness(store: str, workers: list[WorkerStatus]) -> tuple[bool, ...]:
    return tuple(store in worker.near_stores for worker in workers)


@settings(max_examples=60, deadline=None)
@given(clusters(), requests, st.integers(0, 9))
def test_no_pair_and_no_worker_by_itself_would_have_cost_less(
    statuses: list[WorkerStatus], request_: Request, seed: int
) -> None:
    """Against the slow way: every pair is placed in a cluster of its own."""
    view = fixed_view(statuses, seed)
    together = place(asking(request_, view, now=NOW, rules=ALWAYS))
    alone = place(asking(request_, view, now=NOW, rules=NEVER))
    prefills = [each for each in statuses if each.service == "prefill"]
    decodes = [each for each in statuses if each.service == "decode"]
    pairs = [
        place(asking(request_, fixed_view(list(pair), seed), now=NOW, rules=ALWAYS))
        for pair in product(prefills, decodes)
    ]
    split = [cost_of(pair) for pair in pairs if pair is not None and pair.is_split]
    local = [place(asking(request_, fixed_view([each], seed), now=NOW, rules=NEVER)) for each in decodes]
    if together is not None and together.is_split:
        assert cost_of(together) == pytest.approx(min(split), rel=1e-9)
    else:
        assert not split
    large = [each for each in local if each and holds(view, each, request_)]
    possible = [cost_of(each) for each in large or local if each is not None]
    assert (alone is None) == (not possible)
    if alone is not None and len({each.fingerprint for each in decodes}) == 1:
        assert cost_of(alone) == pytest.approx(min(possible), rel=1e-9)


def holds(view: ClusterView, placement: Placement, request_: Request) -> bool:
    most = len(request_.prompt) + request_.stopping.max_tokens
    return view.workers[placement.decode].blocks_total * 16 >= most


@settings(max_examples=60, deadline=None)
@given(clusters(), requests, st.integers(0, 9))
def test_a_decode_worker_prefills_exactly_where_that_is_better_by_the_margin(
    statuses: list[WorkerStatus], request_: Request, seed: int
) -> None:
    view = fixed_view(statuses, seed)
    together, alone, chosen = (
        place(asking(request_, view, now=NOW, rules=rules)) for rules in (ALWAYS, NEVER, Rules())
    )
    if together is None or alone is None or not together.is_split:
        return
    assert chosen is not None
    is_better = cost_of(alone) < cost_of(together) * (1 - MARGIN_SHARE) - MARGIN_SECONDS
    assert chosen.is_split != is_better
    assert cost_of(chosen) == pytest.approx(cost_of(alone if is_better else together), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(clusters(), requests, st.integers(0, 9), st.randoms(use_true_random=False), st.sampled_from(sorted(POLICIES)))
def test_the_same_view_gives_the_same_place_in_whatever_order_it_was_learnt(
    statuses: list[WorkerStatus], request_: Request, seed: int, rng: random.Random, policy: str
) -> None:
    shuffled = list(statuses)
    rng.shuffle(shuffled)
    gone = replace(statuses[0], address="gone:1", name="gone")
    views = [fixed_view(order, seed) for order in (statuses, shuffled, [gone, *shuffled])]
    views[2].drop("gone:1")
    first, *others = (place(asking(request_, view, now=NOW), policy=policy) for view in views)
    assert others == [first, first]


@settings(max_examples=60, deadline=None)
@given(clusters(), st.lists(st.tuples(requests, st.sampled_from(("first", "over", "word", "none"))), max_size=12))
def test_estimates_never_fall_below_nothing_and_settle_on_the_workers_word(
    statuses: list[WorkerStatus], events: list[tuple[Request, str]]
) -> None:
    view = fixed_view(statuses, 0)
    now, placed = NOW, list[tuple[Request, Decision]]()
    for number, (asked, what) in enumerate(events):
        now += 0.1
        request_ = replace(asked, key=RequestKey(RequestId(f"r{number}")))
        if (placement := place(asking(request_, view, now=now))) is not None:
            before = view.estimates._table(placement.record.computes)
            assert before is not None
            busy = before.get(placement.record.computes, "busy_until")
            view.placed_on(request_, placement.record, now, placement.hashes)
            assert before.get(placement.record.computes, "busy_until") > max(busy, now)
            placed.append((request_, placement.record))
        if placed and what == "first":
            view.first_token(placed[0][0].key, now)
        elif placed and what == "over":
            view.over(placed.pop(0)[0].key, now, 5)
        elif what == "word":
            view.update(statuses[number % len(statuses)], now)
        for table in (*view.estimates.tables("prefill", ""), *view.estimates.tables("decode", "")):
            for name in ("contexts", "blocks_used", "busy_until", "pace"):
                assert (table.column(name) >= 0).all()
        view.estimates.cached.check_invariants()
    for request_, _ in placed:
        view.over(request_.key, now)
    assert not view.estimates._places and not view.estimates._on
    for status in statuses:
        view.update(status, now + 1)
        table = view.estimates._table(status.address)
        assert table is not None
        assert table.get(status.address, "blocks_used") == status.blocks_used
        assert table.get(status.address, "contexts") == status.context_tokens
