"""Who is refused at arrival: what fits nowhere, what would wait in vain, what would slow the others down."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest

from services.core.blocks import BlockNames
from services.core.errors import ContextTooLong, NeverFits, Overloaded
from services.core.ids import BlockHash, RequestId, RequestKey
from services.core.request import Request, Sampling, Stopping
from services.core.step_cost import StepCost
from services.scheduler.admission import Queue
from services.scheduler.asking import Asking, Rules
from services.scheduler.classes import TrafficClass
from services.scheduler.cluster_view import ClusterView, WorkerStatus
from services.scheduler.foresight import Foresight
from services.scheduler.rejection import check, outlook
from tests.unit.scheduler.test_policy import FINGERPRINT, view, worker

COST = StepCost(0.01, 0.001, 0.0)


def request(tokens: int = 10, deadline: float | None = None, traffic_class: str = "") -> Request:
    key = RequestKey(RequestId("new"))
    return Request(key, tuple(range(tokens)), Sampling(), Stopping(4), deadline=deadline, traffic_class=traffic_class)


def asking(asked: Request, seen: ClusterView, now: float = 0.0) -> Asking:
    return Asking(asked, seen, BlockNames(asked.salt), now, Rules())


def names_of(asked: Request) -> Sequence[BlockHash]:
    return BlockNames(asked.salt).of(asked.tokens, bytes.fromhex(FINGERPRINT), 16)


def small(name: str, blocks: int, service: str = "decode", **changes: object) -> WorkerStatus:
    return worker(name, service, blocks_total=blocks, **changes)


def verdict(asked: Request, seen: ClusterView, model: str = "", queue: Queue | None = None) -> Exception | None:
    queue = Queue(100, 60.0) if queue is None else queue
    try:
        check(asking(asked, seen), queue, model)
    except (ContextTooLong, NeverFits, Overloaded) as refused:
        return refused
    return None


def busy(stay: float = 10.0, running: int = 4, **fields: object) -> Queue:
    """All of four places are taken since just now, and kept for `stay` seconds."""
    queue = Queue(100, 60.0, **fields)
    queue.capacity = 4
    queue.drain.began("first", -stay)
    queue.drain.ended("first", 0.0)
    for index in range(running):
        queue.drain.began(index, 0.0)
    return queue


@pytest.mark.parametrize(
    ("tokens", "workers", "fits"),
    [
        (31, [small("d", 2)], True),
        (32, [small("d", 2)], False),
        (32, [small("d", 2), small("e", 3)], True),
        (32, [small("d", 3, max_context=32)], False),
        (32, [small("d", 2), small("p", 100, "prefill")], False),
        (32, [small("d", 3), small("p", 2, "prefill")], True),
        (32, [small("d", 2), small("e", 3, is_ready=False)], False),
        (32, [small("d", 0)], True),
        (32, [], True),
    ],
)
def test_what_no_decode_worker_can_hold_is_refused_at_once(
    tokens: int, workers: list[WorkerStatus], fits: bool
) -> None:
    refused = verdict(request(tokens), view(*workers))
    assert (refused is None) == fits
    assert fits or isinstance(refused, NeverFits | ContextTooLong)


def test_it_is_told_whether_the_context_or_the_room_is_too_small() -> None:
    assert isinstance(verdict(request(32), view(small("d", 9, max_context=32))), ContextTooLong)
    assert isinstance(verdict(request(32), view(small("d", 2, max_context=64))), NeverFits)
    assert isinstance(verdict(request(32), view(small("d", 9, max_context=32), small("e", 2))), NeverFits)


def test_one_whose_time_is_up_is_left_to_the_queue() -> None:
    assert verdict(request(deadline=0.0), view(worker("d")), queue=busy()) is None


def test_only_workers_of_its_model_and_its_class_count() -> None:
    seen = view(small("d", 2), small("large", 9, fingerprint="cd" * 32))
    assert isinstance(verdict(request(40), seen, FINGERPRINT), NeverFits)
    queue = Queue(100, 60.0, [TrafficClass("batch", workers=("d*",))])
    seen = view(small("d", 2), small("large", 9))
    assert isinstance(verdict(request(40, traffic_class="batch"), seen, FINGERPRINT, queue), NeverFits)
    assert verdict(request(40), seen, FINGERPRINT, queue) is None


def test_who_would_wait_longer_than_it_may_hears_so_at_arrival_and_when_it_may_be_otherwise() -> None:
    queue = busy()
    assert verdict(request(), view(worker("d")), queue=queue) is None
    refused = verdict(request(deadline=4.0), view(worker("d")), queue=queue)
    assert isinstance(refused, Overloaded)
    assert abs(refused.retry_after - 7.2) < 0.01
    for index in range(40):
        queue.push(replace(request(), key=RequestKey(RequestId(f"q{index}"))), 0.0)
    refused = verdict(request(), view(worker("d")), queue=queue)
    assert isinstance(refused, Overloaded)
    assert refused.retry_after > 40


def test_a_burst_of_others_does_not_put_a_single_request_off() -> None:
    queue = busy()
    for index in range(90):
        burst = replace(request(), key=RequestKey(RequestId(f"q{index}")), client="burst")
        queue.push(burst, 0.0)
    assert isinstance(verdict(replace(request(), client="burst"), view(worker("d")), queue=queue), Overloaded)
    assert verdict(replace(request(), client="single"), view(worker("d")), queue=queue) is None


def test_what_counts_is_the_load_when_the_prompt_would_be_computed() -> None:
    """Four run now; they have left when a long prompt is done, and not when a short one is."""
    seen = view(worker("d", max_running=8, blocks_total=200, cost=COST))
    queue = busy(stay=2.0)
    queue.capacity = 8
    soon, later = (outlook(asking(request(tokens), seen), queue, "") for tokens in (10, 3000))
    assert (soon.rows, later.rows) == (5.0, 1.0)
    assert soon.landing < 2.0 < later.landing


def test_whoever_comes_to_decode_workers_that_would_be_too_slow_is_refused() -> None:
    seen = view(worker("d", max_running=8, cost=COST))
    for most, is_refused in ((0.014, True), (0.016, False)):
        queue = busy(classes=[TrafficClass(max_itl=most)])
        queue.capacity = 8
        assert (verdict(request(), seen, queue=queue) is not None) == is_refused


def test_whoever_would_stand_behind_too_many_prompts_is_refused_and_told_when_it_may_be_otherwise() -> None:
    queue = busy(stay=0.0, running=0, classes=[TrafficClass(max_ttft=1.0)])
    waiting = view(worker("d", cost=COST), worker("p", "prefill", cost=COST, waiting_tokens=2000))
    refused = verdict(request(), waiting, queue=queue)
    assert isinstance(refused, Overloaded)
    assert 1.0 < refused.retry_after < 3.0
    known = ClusterView()
    known.update(worker("d", cost=COST))
    known.update(worker("p", "prefill", cost=COST))
    known.estimates.cached.note("p:1", names_of(request(1500)), 100)
    cold, warm = (
        outlook(asking(request(1500), each), queue, "").landing for each in (view(*known.workers.values()), known)
    )
    assert warm < cold / 10, "what is cached is not computed"
    other = worker("q", "prefill", cost=COST)
    assert verdict(request(), view(worker("d", cost=COST), *waiting.workers.values(), other), queue=queue) is None


def test_whoever_waits_waits_also_for_the_more_important_who_come_meanwhile() -> None:
    """A place comes free in 5 s; golden ones take half of all places."""
    queue = busy(stay=5.0, classes=[TrafficClass("gold", level=1)])
    assert outlook(asking(request(), view()), queue, "").wait == pytest.approx(5.0, abs=0.01)
    for _ in range(4):
        queue.arrivals.came(1, 0.0)
    assert outlook(asking(request(), view()), queue, "").wait == pytest.approx(10.0, abs=0.01)
    assert outlook(asking(request(traffic_class="gold"), view()), queue, "").wait == pytest.approx(5.0, abs=0.01)
    assert queue.arrivals.share(0, 100.0, 5.0, 4) < 0.001


def test_a_class_that_had_no_places_of_late_may_have_one_that_is_free() -> None:
    queue = busy(stay=5.0, running=2, classes=[TrafficClass("gold", level=1, weight=8), TrafficClass("batch")])
    for number in range(100):
        queue.push(replace(request(traffic_class="gold"), key=RequestKey(RequestId(f"g{number}"))), 0.0)
        queue.pop()
    assert queue.position(request(traffic_class="batch")) == 1
    queue.drain.began("another", 0.0)
    queue.drain.began("and another", 0.0)
    assert queue.position(request(traffic_class="batch")) > 1


def test_a_bound_is_kept_for_nearly_all_however_wrong_the_prediction() -> None:
    foresight, random, late = Foresight(), Random(0), 0
    for number in range(3000):
        took = random.lognormvariate(0.0, 0.3)
        foresight.seen("batch", 0.5, took)
        late += number >= 1000 and took > 0.5 * foresight.factor("batch")
    assert 0.02 < late / 2000 < 0.1
    assert foresight.factor("other") == pytest.approx(2.0)


def test_the_load_does_not_swing_as_it_does_for_whoever_looks_at_that_of_the_moment() -> None:
    """Prompts take 1 s, answers 1 s, 50 requests come a second and 20 rows are as many as there may be."""
    seen = view(worker("d", max_running=100, cost=StepCost(0.0, 0.001, 0.0)))
    queue = busy(stay=2.0, running=0, classes=[TrafficClass(max_itl=0.0205)])
    queue.capacity = 100

    def by_forecast(now: float, number: int, landed: int) -> bool:
        for gone in range(number):
            if gone / 50 + 2.0 <= now:
                queue.drain.ended(gone, now)
        try:
            check(asking(request(1000), seen, now), queue, "")
        except Overloaded:
            return False
        queue.drain.began(number, now)
        return True

    steady, naive = (_loads(rule) for rule in (by_forecast, lambda now, number, landed: landed < 20))
    assert max(naive) - min(naive) >= 30
    assert max(steady) <= 21
    assert max(steady) - min(steady) <= 3


def _loads(admits: Callable[[float, int, int], bool]) -> list[int]:
    """Decode rows over time, after the beginning; the rule is told the time, the request and the rows there are."""
    began: list[float] = []
    loads = []
    for tick in range(600):
        now = tick / 50
        loads.append(sum(begin + 1.0 <= now < begin + 2.0 for begin in began))
        if admits(now, tick, loads[-1]):
            began.append(now)
    return loads[200:]
