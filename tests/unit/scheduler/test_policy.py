"""Placement: filters, scores, ties and the record of why."""

from dataclasses import replace

import pytest

from services.core.block_facts import BlockSource, Facts, Stock, short
from services.core.blocks import BlockNames
from services.core.ids import RequestId, RequestKey
from services.core.request import Request, Sampling, Stopping
from services.scheduler.cluster_view import ClusterView, WorkerStatus
from tests.support.placing import asking, place

FINGERPRINT = "ab" * 32
FORMAT = "float32/kt1/b16/l1/h1x2"


def worker(name: str, service: str = "decode", **changes: object) -> WorkerStatus:
    fields: dict[str, object] = {
        "address": f"{name}:1",
        "name": name,
        "service": service,
        "fingerprint": FINGERPRINT,
        "format": FORMAT,
        "is_ready": True,
        "running": 0,
        "waiting": 0,
        "max_running": 4,
        "blocks_total": 100,
        "blocks_used": 0,
        "waiting_tokens": 0,
        "stores": frozenset({"k:1"}),
    }
    return WorkerStatus(**(fields | changes))


def request(name: str = "r", prompt: int = 100) -> Request:
    return Request(RequestKey(RequestId(name)), tuple(range(prompt)), Sampling(), Stopping(16))


def view(*workers: WorkerStatus) -> ClusterView:
    seen = ClusterView(kvstores={"k:1": "k", "l:1": "l", "m:1": "m"})
    for each in workers:
        seen.update(each)
    return seen


def test_a_request_is_split_when_both_pools_and_a_store_are_there() -> None:
    placement = place(asking(request(), view(worker("p", "prefill"), worker("d"))))
    assert placement is not None
    assert (placement.prefill, placement.decode, placement.kvstore) == ("p:1", "d:1", "k:1")


def test_without_a_prefill_worker_or_a_store_the_decode_worker_does_both() -> None:
    alone = place(asking(request(), view(worker("d"))))
    storeless = place(asking(request(), view(worker("p", "prefill"), worker("d", stores=frozenset()))))
    for placement in (alone, storeless):
        assert placement is not None
        assert placement.prefill == placement.kvstore == ""
        assert "unsplit" in placement.why


def test_without_a_decode_worker_with_room_the_request_waits() -> None:
    assert place(asking(request(), view(worker("p", "prefill")))) is None
    assert place(asking(request(), view(worker("d", running=3, waiting=1)))) is None
    assert place(asking(request(), view(worker("d", is_ready=False)))) is None


def test_a_prefill_pool_that_is_full_for_the_moment_is_waited_for() -> None:
    assert place(asking(request(), view(worker("p", "prefill", running=4), worker("d")))) is None


def test_workers_with_other_weights_or_another_format_are_never_paired() -> None:
    for changes in ({"fingerprint": "cd" * 32}, {"format": "float32/kt1/b32/l1/h1x2"}):
        placement = place(asking(request(), view(worker("p", "prefill", **changes), worker("d"))))
        assert placement is not None
        assert placement.prefill == ""


def test_the_less_busy_worker_wins() -> None:
    pool = [worker("d1", running=3), worker("d2", running=1), worker("d3", blocks_used=90, running=1)]
    placement = place(asking(request(), view(*pool)))
    assert placement is not None
    assert placement.decode == "d2:1"


def test_a_prefill_worker_with_many_waiting_tokens_is_avoided() -> None:
    pool = [worker("p1", "prefill", waiting_tokens=5000), worker("p2", "prefill"), worker("d")]
    placement = place(asking(request(), view(*pool)))
    assert placement is not None
    assert placement.prefill == "p2:1"


def test_own_placements_count_before_the_worker_reports_them() -> None:
    seen = view(worker("d1"), worker("d2"))
    for _ in range(4):
        seen.count("d1:1", 1)
    placement = place(asking(request(), seen))
    assert placement is not None
    assert placement.decode == "d2:1"


def test_requests_of_others_count_as_last_reported_and_own_ones_as_they_come_and_go() -> None:
    seen = view(worker("d"))
    seen.count("d:1", 3)
    seen.update(worker("d", running=3))
    assert seen.in_flight(seen.workers["d:1"]) == 3
    seen.count("d:1", -3)
    assert seen.in_flight(seen.workers["d:1"]) == 0, "a word that is out of date does not stand for what is over"
    seen.update(worker("d", running=2, waiting=1))
    assert seen.in_flight(seen.workers["d:1"]) == 3


def test_an_overloaded_worker_is_left_alone_until_it_speaks() -> None:
    seen = view(worker("d"))
    seen.overloaded.add("d:1")
    assert place(asking(request(), seen)) is None
    seen.update(worker("d"))
    assert place(asking(request(), seen)) is not None


def test_ties_spread_over_equal_workers_and_the_same_view_gives_the_same_answer() -> None:
    seen = view(*(worker(f"d{index}") for index in range(4)))
    chosen = [place(asking(request(f"r{index}"), seen)) for index in range(200)]
    assert chosen == [place(asking(request(f"r{index}"), seen)) for index in range(200)]
    counts = [sum(p is not None and p.decode == f"d{index}:1" for p in chosen) for index in range(4)]
    assert min(counts) > 25


def test_ties_break_the_same_whoever_was_there_before() -> None:
    names = [f"d{index}" for index in range(4)]
    changed = view(*(worker(name) for name in ("gone", *reversed(names))))
    changed.drop("gone:1")
    for index in range(50):
        asked = request(f"r{index}")
        assert place(asking(asked, changed)) == place(asking(asked, view(*map(worker, names))))


def test_the_record_names_every_candidate_and_its_scores() -> None:
    placement = place(asking(request(), view(worker("d1"), worker("d2", running=2))))
    assert placement is not None
    record = placement.record
    assert (record.decode, record.others, record.reason) == ("d1:1", 0, "no prefill worker")
    assert [each.worker for each in record.candidates] == ["d1", "d2"]
    assert [name for name, _ in record.candidates[0].terms][:5] == ["wait", "transfer", "compute", "delay", "stall"]
    for each in record.candidates:
        assert each.cost == pytest.approx(sum(seconds for _, seconds in each.terms))


K, L, M = "k:1", "l:1", "m:1"


def stores(*addresses: str) -> frozenset[str]:
    return frozenset(addresses)


def holding(seen: ClusterView, address: str, asked: Request, blocks: int, kv_format: str = FORMAT) -> ClusterView:
    """The store at `address` said that it holds so many of the request's first blocks."""
    names = BlockNames(asked.salt).of(asked.tokens, bytes.fromhex(FINGERPRINT), 16)
    stock = Stock(address, address, "life", FINGERPRINT, kv_format)
    seen.prefixes.hear(Facts(stock, 1, tuple(map(short, names[:blocks]))))
    return seen


def chosen_store(seen: ClusterView, name: str = "r") -> str:
    placement = place(asking(request(name), seen))
    assert placement is not None
    return placement.kvstore


def test_blocks_go_through_a_store_that_both_workers_reach() -> None:
    seen = view(worker("p", "prefill", stores=stores(K, L)), worker("d", stores=stores(L, M)))
    assert {chosen_store(seen, f"r{index}") for index in range(50)} == {L}


def test_workers_that_reach_no_store_in_common_are_not_paired() -> None:
    apart = worker("p1", "prefill", stores=stores(K))
    placement = place(asking(request(), view(apart, worker("d", stores=stores(L)))))
    assert placement is not None
    assert (placement.prefill, placement.kvstore) == ("", "")
    assert "unsplit: no kvstore" in placement.why
    busy = worker("p2", "prefill", stores=stores(L), running=3)
    joined = place(asking(request(), view(apart, busy, worker("d", stores=stores(L)))))
    assert joined is not None
    assert (joined.prefill, joined.kvstore) == ("p2:1", L)


def test_a_store_that_is_known_but_reached_by_nobody_costs_nothing() -> None:
    seen = view(worker("p", "prefill"), worker("d"))
    seen.kvstores |= {"dead:1": "dead:1"}
    assert {chosen_store(seen, f"r{index}") for index in range(50)} == {K}


def test_a_store_that_takes_nothing_more_is_left_alone_until_it_is_ready() -> None:
    seen = view(worker("p", "prefill", stores=stores(K, L)), worker("d", stores=stores(K, L)))
    seen.unready_stores.add(K)
    assert {chosen_store(seen, f"r{index}") for index in range(50)} == {L}
    seen.unready_stores.discard(K)
    assert {chosen_store(seen, f"r{index}") for index in range(50)} == {K, L}


def test_a_store_near_prefill_comes_before_one_near_decode_and_that_before_others() -> None:
    everywhere = stores(K, L, M)
    prefill = worker("p", "prefill", stores=everywhere, near_stores=stores(K))
    near_decode = worker("d", stores=everywhere, near_stores=stores(L))
    assert {chosen_store(view(prefill, near_decode), f"r{index}") for index in range(50)} == {K}
    far_prefill = worker("p", "prefill", stores=everywhere)
    assert {chosen_store(view(far_prefill, near_decode), f"r{index}") for index in range(50)} == {L}
    placement = place(asking(request(), view(prefill, near_decode)))
    assert placement is not None
    assert "kvstore k near p" in placement.why


def test_requests_spread_over_equally_near_stores() -> None:
    both = {"stores": stores(K, L, M), "near_stores": stores(K, L)}
    seen = view(worker("p", "prefill", **both), worker("d", **both))
    chosen = [chosen_store(seen, f"r{index}") for index in range(200)]
    assert set(chosen) == {K, L}
    assert min(chosen.count(K), chosen.count(L)) > 60


def test_stores_that_hold_the_beginning_of_the_prompt_are_named_the_most_blocks_first() -> None:
    everywhere = {"stores": stores(K, L, M)}
    seen = view(worker("p", "prefill", near_stores=stores(M), **everywhere), worker("d", **everywhere))
    for address, blocks in ((K, 2), (L, 4), (M, 2)):
        holding(seen, address, request(), blocks)
    placement = place(asking(request(), seen))
    assert placement is not None
    assert placement.sources == (BlockSource(L, 4), BlockSource(M, 2), BlockSource(K, 2))
    assert "known l=4, m=2, k=2" in placement.why


def test_an_unsplit_request_is_told_of_sources_that_its_decode_worker_reaches() -> None:
    seen = view(worker("d", stores=stores(K)))
    for address in (K, L):
        holding(seen, address, request(), 3)
    placement = place(asking(request(), seen))
    assert placement is not None
    assert placement.sources == (BlockSource(K, 3),)


def test_blocks_of_another_format_or_another_tenant_are_no_source() -> None:
    seen = view(worker("p", "prefill"), worker("d"))
    holding(seen, K, request(), 3, kv_format="int8/kt1/b16/l1/h1x2")
    placement = place(asking(request(), seen))
    assert placement is not None
    assert placement.sources == ()
    holding(seen, K, request(), 3)
    other = replace(request(), salt=b"another tenant")
    mine, theirs = place(asking(request(), seen)), place(asking(other, seen))
    assert mine is not None and theirs is not None
    assert (mine.sources, theirs.sources) == ((BlockSource(K, 3),), ())


def test_blocks_of_the_answer_count_when_a_request_begins_again() -> None:
    again = request(prompt=40).next_attempt(tuple(range(500, 530)))
    seen = holding(view(worker("p", "prefill"), worker("d")), K, again, 4)
    placement = place(asking(again, seen))
    assert placement is not None
    assert placement.sources == (BlockSource(K, 4),)
