"""Placement: filters, scores, ties and the record of why."""

from services.core.ids import RequestId, RequestKey
from services.core.request import Request, Sampling, Stopping
from services.scheduler.cluster_view import ClusterView, WorkerStatus
from services.scheduler.policy import place


def worker(name: str, service: str = "decode", **changes: object) -> WorkerStatus:
    fields: dict[str, object] = {
        "address": f"{name}:1",
        "name": name,
        "service": service,
        "fingerprint": "f",
        "format": "float32/b16",
        "is_ready": True,
        "running": 0,
        "waiting": 0,
        "max_running": 4,
        "blocks_total": 100,
        "blocks_used": 0,
        "waiting_tokens": 0,
    }
    return WorkerStatus(**(fields | changes))


def request(name: str = "r", prompt: int = 100) -> Request:
    return Request(RequestKey(RequestId(name)), tuple(range(prompt)), Sampling(), Stopping(16))


def view(*workers: WorkerStatus, kvstores: tuple[str, ...] = ("k:1",)) -> ClusterView:
    seen = ClusterView(kvstores={address: address for address in kvstores})
    for each in workers:
        seen.update(each)
    return seen


def test_a_request_is_split_when_both_pools_and_a_store_are_there() -> None:
    placement = place(request(), view(worker("p", "prefill"), worker("d")))
    assert placement is not None
    assert (placement.prefill, placement.decode, placement.kvstore) == ("p:1", "d:1", "k:1")


def test_without_a_prefill_worker_or_a_store_the_decode_worker_does_both() -> None:
    alone = place(request(), view(worker("d")))
    storeless = place(request(), view(worker("p", "prefill"), worker("d"), kvstores=()))
    for placement in (alone, storeless):
        assert placement is not None
        assert placement.prefill == placement.kvstore == ""
        assert "unsplit" in placement.why


def test_without_a_decode_worker_with_room_the_request_waits() -> None:
    assert place(request(), view(worker("p", "prefill"))) is None
    assert place(request(), view(worker("d", running=3, waiting=1))) is None
    assert place(request(), view(worker("d", is_ready=False))) is None


def test_a_prefill_pool_that_is_full_for_the_moment_is_waited_for() -> None:
    assert place(request(), view(worker("p", "prefill", running=4), worker("d"))) is None


def test_workers_with_other_weights_or_another_format_are_never_paired() -> None:
    for changes in ({"fingerprint": "g"}, {"format": "float32/b32"}):
        placement = place(request(), view(worker("p", "prefill", **changes), worker("d")))
        assert placement is not None
        assert placement.prefill == ""


def test_the_less_busy_worker_wins() -> None:
    pool = [worker("d1", running=3), worker("d2", running=1), worker("d3", blocks_used=90, running=1)]
    placement = place(request(), view(*pool))
    assert placement is not None
    assert placement.decode == "d2:1"


def test_a_prefill_worker_with_many_waiting_tokens_is_avoided() -> None:
    pool = [worker("p1", "prefill", waiting_tokens=5000), worker("p2", "prefill"), worker("d")]
    placement = place(request(), view(*pool))
    assert placement is not None
    assert placement.prefill == "p2:1"


def test_own_placements_count_before_the_worker_reports_them() -> None:
    seen = view(worker("d1"), worker("d2"))
    for _ in range(4):
        seen.count("d1:1", 1)
    placement = place(request(), seen)
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
    assert place(request(), seen) is None
    seen.update(worker("d"))
    assert place(request(), seen) is not None


def test_ties_spread_over_equal_workers_and_the_same_view_gives_the_same_answer() -> None:
    seen = view(*(worker(f"d{index}") for index in range(4)))
    chosen = [place(request(f"r{index}"), seen) for index in range(200)]
    assert chosen == [place(request(f"r{index}"), seen) for index in range(200)]
    counts = [sum(p is not None and p.decode == f"d{index}:1" for p in chosen) for index in range(4)]
    assert min(counts) > 25


def test_the_record_names_every_candidate_and_its_scores() -> None:
    placement = place(request(), view(worker("d1"), worker("d2", running=2)))
    assert placement is not None
    assert "d1=2.00" in placement.why
    assert "few_in_flight 0.50" in placement.why
