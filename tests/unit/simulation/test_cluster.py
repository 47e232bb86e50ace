"""Whole simulated clusters: nobody is lost, nothing is early, nothing is drawn by chance."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from statistics import fmean

import pytest

from services.core.block_facts import BlockSource
from services.scheduler.asking import Asking
from services.scheduler.policies import POLICIES
from services.scheduler.story import Placement
from services.simulation.cluster import Cluster, Pools
from services.simulation.outcome import Outcome
from services.simulation.profile import Profile, load
from services.simulation.traces import TraceRequest, at_rate, read

TRACE = Path(__file__).parent / "traces" / "mooncake_conversation_300.jsonl.gz"
SPLIT, WHOLE = Pools(2, 2), Pools(0, 0, 4)


@cache
def trace(per_second: float) -> tuple[TraceRequest, ...]:
    return tuple(at_rate(read(TRACE, 120), per_second))


def narrow(profile: Profile) -> Profile:
    """Room for few of the trace's requests at a time: some wait, some are preempted."""
    models = {
        role: replace(getattr(profile, role), num_blocks=300, watermark_blocks=3)
        for role in ("prefill", "decode", "whole")
    }
    return replace(profile, **models, store_blocks=200)


def ran(policy: str, pools: Pools, per_second: float, profile: Profile | None = None) -> Cluster:
    profile = profile or load("a800_llama3_70b")
    cluster = Cluster(profile, pools, POLICIES[policy], trace(per_second), (0.1, 0.2))
    cluster.run()
    return cluster


def check(outcomes: Sequence[Outcome]) -> None:
    for each in outcomes:
        assert each.arrived <= each.placed < each.first <= each.ended, "a time runs backwards"
        assert (each.first == each.ended) == (each.answer == 1)
        assert 0 <= each.cached < each.prompt
        assert each.gaps >= each.answer - 1, "a gap is missing"
        assert all(0 <= long <= each.gaps for long in each.long_gaps)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("is_narrow", [False, True], ids=["roomy", "narrow"])
def test_every_request_is_answered_once_and_in_order(policy: str, is_narrow: bool) -> None:
    profile = load("a800_llama3_70b")
    pools = WHOLE if policy.startswith("unsplit") else SPLIT
    cluster = ran(policy, pools, 1.5, narrow(profile) if is_narrow else profile)
    check(cluster.outcomes)
    for machine in cluster.machines.values():
        machine.worker.check_invariants()
        assert not machine.flights and not machine.worker.rows and not machine.worker.waiting, "something is left"
        assert machine.worker.blocks.used == 0
        assert 0 <= machine.worker.busy_seconds <= cluster.now + 1e-6


def test_the_same_trace_gives_the_same_figures() -> None:
    one, other = (ran("random", SPLIT, 1.5).outcomes for _ in range(2))
    assert one == other


def test_runs_of_steps_are_as_steps_one_by_one() -> None:
    quick = ran("ours", SPLIT, 1.5)
    slow = Cluster(load("a800_llama3_70b"), SPLIT, POLICIES["ours"], trace(1.5), (0.1, 0.2))
    for machine in slow.machines.values():
        machine.worker.longest_run = 1
    slow.run()
    assert fmean(each.ttft for each in quick.outcomes) == pytest.approx(fmean(e.ttft for e in slow.outcomes), rel=0.02)
    assert fmean(each.itl for each in quick.outcomes) == pytest.approx(fmean(e.itl for e in slow.outcomes), rel=0.02)


@pytest.mark.parametrize("policy", ["ours", "least_load", "unsplit_chunked"])
def test_more_workers_are_not_worse(policy: str) -> None:
    few, many = (Pools(0, 0, 4), Pools(0, 0, 8)) if policy == "unsplit_chunked" else (Pools(2, 2), Pools(4, 4))
    one, other = (fmean(each.ttft for each in ran(policy, pools, 1.5).outcomes) for pools in (few, many))
    assert other <= one * 1.05


def test_a_request_alone_takes_what_its_steps_and_messages_take() -> None:
    profile = load("a800_llama3_70b")
    row = TraceRequest(0.0, 512 * 3 + 40, 5, (1, 2, 3))
    cluster = Cluster(profile, Pools(0, 0, 1), POLICIES["unsplit_chunked"], [row], ())
    cluster.run()
    (outcome,) = cluster.outcomes
    cost, wires = profile.whole.cost, profile.wires
    assert cost.of([(row.prompt, 0)]) <= profile.whole.step_seconds, "one step"
    assert outcome.ttft == pytest.approx(wires.request + cost.of([(row.prompt, 0)]) + wires.token)
    decoding = sum(cost.of([(1, row.prompt + drawn)]) for drawn in range(4))
    assert outcome.ended - outcome.first == pytest.approx(decoding)


def test_a_split_request_waits_for_its_blocks_and_its_tail() -> None:
    profile = load("a800_llama3_70b")
    row = TraceRequest(0.0, 1000, 3, (1,))
    cluster = Cluster(profile, Pools(1, 1), POLICIES["random"], [row], ())
    cluster.run()
    (outcome,) = cluster.outcomes
    prefill, decode, wires = profile.prefill.cost, profile.decode.cost, profile.wires
    assert outcome.is_split
    assert outcome.ttft == pytest.approx(wires.request + prefill.of([(1000, 0)]) + wires.token)
    handed = 1000 // 16 * 16
    size = handed * profile.token_bytes
    moving = size / wires.near + size / wires.nic + wires.latency
    decoding = decode.of([(1000 - handed + 1, handed)]) + decode.of([(1, 1001)])
    assert outcome.ended - outcome.first == pytest.approx(moving + decoding)


def test_what_was_stored_is_known_and_is_fetched_by_another_worker() -> None:
    """Each request goes to another prefill worker, and is told of the store that the policy could know of."""
    profile = load("a800_llama3_70b")
    known: list[dict[str, int]] = []

    def place(asking: Asking, fingerprint: str) -> Placement:
        found = asking.view.prefixes.longest(asking.names.of((), b"", 0), fingerprint, str(profile.kv_format))
        known.append(found)
        sources = tuple(BlockSource(store, blocks) for store, blocks in found.items())
        number = len(known) - 1
        return Placement("decode-0004", f"prefill-{number:04d}", f"store-{number:04d}", "", sources)

    rows = [TraceRequest(at, 512 * 20 + 5, 2, tuple(range(20))) for at in (0.0, 60.0, 120.0)]
    cluster = Cluster(profile, Pools(4, 1), place, rows, ())
    cluster.run()
    assert known == [{}, {"store-0000": 20}, {"store-0000": 20, "store-0001": 20}]
    assert [each.cached for each in cluster.outcomes] == [0, 512 * 20, 512 * 20]
    wires, cost = profile.wires, profile.prefill.cost
    fetching = 512 * 20 * profile.token_bytes / wires.nic + wires.latency
    alone = wires.request + fetching + cost.of([(5, 512 * 20)]) + wires.token
    assert cluster.outcomes[1].ttft == pytest.approx(alone)


def test_answers_do_not_depend_on_the_clock_of_arrival() -> None:
    """A trace that begins later ends later by as much."""
    draw = Random(3)
    rows = [TraceRequest(at * 0.5, draw.randint(10, 3000), draw.randint(1, 50)) for at in range(30)]
    profile = load("a800_llama3_70b")
    times = []
    for shift in (0.0, 500.0):
        shifted = [replace(row, at=row.at + shift) for row in rows]
        cluster = Cluster(profile, SPLIT, POLICIES["least_load"], shifted, ())
        cluster.run()
        times.append([each.ended - shift for each in cluster.outcomes])
    assert times[0] == pytest.approx(times[1])
