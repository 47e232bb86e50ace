"""Fair share holds the bounds that its source proves, exactly, and priority within it ages."""

from collections import Counter, defaultdict
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from services.core.ids import RequestId, RequestKey
from services.core.request import Request, Sampling, Stopping
from services.scheduler.admission import HEAD_START, Queue
from services.scheduler.classes import TrafficClass
from services.scheduler.fair_share import FairShare

WEIGHTS = {"a": 1.0, "b": 2.0, "c": 0.5}
works = st.integers(1, 20)


@given(st.lists(st.tuples(st.sampled_from("abc"), works), min_size=30, max_size=80), st.integers(0, 20))
@settings(max_examples=100, deadline=None)
def test_of_two_that_wait_none_gets_more_than_the_bound_beyond_its_share(
    pieces: list[tuple[str, int]], begin: int
) -> None:
    """Goyal, Vin and Cheng, theorem 1, over every interval that begins after `begin` pieces."""
    todo = defaultdict(list)
    for member, work in pieces:
        todo[member].append(work)
    most = {member: max(done) for member, done in todo.items()}
    share: FairShare[str] = FairShare()
    for member in todo:
        share.join(member)
    got = dict.fromkeys(todo, 0.0)
    for count in range(len(pieces)):
        if count == begin:
            got = dict.fromkeys(got, 0.0)
        member = share.first()
        assert member is not None
        work = todo[member].pop(0)
        share.charge(member, work / WEIGHTS[member])
        got[member] += work / WEIGHTS[member]
        if not all(todo.values()):
            return
        for one in todo:
            for other in todo:
                bound = most[one] / WEIGHTS[one] + most[other] / WEIGHTS[other]
                assert abs(got[one] - got[other]) <= bound + 1e-9


@given(
    bursts=st.lists(st.integers(0, 12), min_size=1, max_size=5),
    served=st.integers(0, 20),
    data=st.data(),
)
@settings(max_examples=100, deadline=None)
def test_a_single_request_waits_for_at_most_one_of_every_other_client_however_long_their_bursts(
    bursts: list[int], served: int, data: st.DataObject
) -> None:
    queue = Queue(10_000, 60.0)
    for index in range(max(bursts)):
        for client, burst in enumerate(bursts):
            if index < burst:
                queue.push(request(f"{client}.{index}", client=f"c{client}"), 0.0)
    for _ in range(min(served, len(queue))):
        take(queue, data.draw(works))
    queue.push(request("single", client="single"), 0.0)
    before: Counter[str] = Counter()
    while (placed := take(queue, data.draw(works))).client != "single":
        before[placed.client] += 1
    assert all(count <= 1 for count in before.values())


@given(st.lists(st.sampled_from("abc"), min_size=40, max_size=120))
@settings(max_examples=50, deadline=None)
def test_clients_and_classes_get_places_in_proportion_to_their_weights(order: list[str]) -> None:
    for queue, asks in ((_by_client(WEIGHTS), _client), (_by_class(WEIGHTS), _class)):
        left = Counter(order)
        for index, name in enumerate(order):
            queue.push(asks(f"{index}", name), 0.0)
        got: Counter[str] = Counter()
        while all(left[name] > 0 for name in set(order)):
            placed = take(queue, 1)
            name = placed.client or placed.traffic_class
            got[name] += 1
            left[name] -= 1
        for one in set(order):
            for other in set(order):
                bound = 1 / WEIGHTS[one] + 1 / WEIGHTS[other]
                assert abs(got[one] / WEIGHTS[one] - got[other] / WEIGHTS[other]) <= bound + 1e-9


def test_one_that_was_away_has_saved_nothing_and_owes_nothing() -> None:
    share: FairShare[str] = FairShare()
    share.join("steady")
    for _ in range(10):
        share.charge("steady", 1.0)
    share.join("late")
    order = []
    for _ in range(6):
        member = share.first()
        assert member is not None
        order.append(member)
        share.charge(member, 1.0)
    assert Counter(order) == {"steady": 3, "late": 3}


def test_one_that_leaves_and_comes_back_at_once_is_still_charged_for_what_it_had() -> None:
    share: FairShare[str] = FairShare()
    share.join("other")
    share.join("greedy")
    share.charge("other", 1.0)
    share.charge("greedy", 100.0)
    share.leave("greedy")
    share.join("greedy")
    for _ in range(50):
        assert share.first() == "other"
        share.charge("other", 1.0)


def test_no_stream_of_important_requests_starves_a_clients_other_ones() -> None:
    queue = Queue(10_000, 1e9)
    queue.push(request("old"), 0.0)
    now, placed = 0.0, ""
    while placed != "old":
        queue.push(request(f"important at {now}", priority=3), now)
        placed = take(queue, 1).key.request_id
        now += 1.0
        assert now <= 3 * HEAD_START + 2
    assert now > 3 * HEAD_START - 2


def request(name: str, client: str = "", priority: int = 0, traffic_class: str = "") -> Request:
    key = RequestKey(RequestId(name))
    made = Request(key, (1,), Sampling(), Stopping(4), priority=priority, client=client, traffic_class=traffic_class)
    return made


def take(queue: Queue, work: float) -> Request:
    head = queue.head()
    assert head is not None
    return queue.take(head.key, float(work))


def _by_client(weights: Mapping[str, float]) -> Queue:
    return Queue(10_000, 60.0, [TrafficClass(shares=weights)])


def _client(name: str, weighted: str) -> Request:
    return request(name, client=weighted)


def _by_class(weights: Mapping[str, float]) -> Queue:
    return Queue(10_000, 60.0, [TrafficClass(name, weight=weight) for name, weight in weights.items()])


def _class(name: str, weighted: str) -> Request:
    return request(name, traffic_class=weighted)
