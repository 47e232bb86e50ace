"""The queue: bounded, in order, and never silent about a request whose time is up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.errors import DeadlinePassed, Overloaded, QueueTimeout
from services.core.ids import RequestId, RequestKey
from services.core.request import Request, Sampling, Stopping
from services.scheduler.admission import Queue


def request(name: str, priority: int = 0, deadline: float | None = None) -> Request:
    key = RequestKey(RequestId(name))
    return Request(key, (1,), Sampling(), Stopping(4), priority=priority, deadline=deadline)


@given(st.lists(st.integers(-2, 2), max_size=30))
def test_higher_priority_goes_first_and_equals_in_order_of_arrival(priorities: list[int]) -> None:
    queue = Queue(100, 60.0)
    for index, priority in enumerate(priorities):
        queue.push(request(f"{index}", priority), now=0.0)
    order = [int(queue.pop().key.request_id) for _ in priorities]
    assert order == sorted(range(len(priorities)), key=lambda index: (-priorities[index], index))


def test_a_full_queue_refuses_at_once_and_says_when_to_come_back() -> None:
    queue = Queue(1, 60.0)
    queue.push(request("a"), now=0.0)
    with pytest.raises(Overloaded) as caught:
        queue.push(request("b"), now=0.0)
    assert caught.value.retry_after > 0


def test_one_that_lost_its_place_goes_ahead_and_is_never_refused() -> None:
    queue = Queue(1, 60.0)
    queue.push(request("a"), now=0.0)
    queue.push_back(request("lost"), now=0.0, until=None)
    queue.push_back(request("lost later"), now=0.0, until=None)
    queue.push_back(request("urgent", priority=1), now=0.0, until=None)
    assert [queue.pop().key.request_id for _ in range(4)] == ["urgent", "lost", "lost later", "a"]


def test_waiting_that_nobody_ended_by_beginning_goes_on_and_does_not_start_anew() -> None:
    queue = Queue(10, 5.0)
    until = queue.push(request("a"), now=0.0)
    queue.push_back(queue.pop(), now=4.0, until=until)
    [(late, _)] = queue.expired(5.0)
    assert late.key.request_id == "a"


def test_time_up_is_told_at_that_time_with_its_cause() -> None:
    queue = Queue(10, 5.0)
    queue.push(request("patient"), now=0.0)
    queue.push(request("hurried", deadline=2.0), now=0.0)
    assert queue.next_expiry() == 2.0
    assert queue.expired(1.9) == []
    [(late, error)] = queue.expired(2.0)
    assert (late.key.request_id, type(error)) == ("hurried", DeadlinePassed)
    [(late, error)] = queue.expired(5.0)
    assert (late.key.request_id, type(error)) == ("patient", QueueTimeout)
    assert queue.next_expiry() is None


def test_who_leaves_is_no_longer_there() -> None:
    queue = Queue(10, 5.0)
    queue.push(request("a"), now=0.0)
    assert queue.remove(request("a").key)
    assert not queue.remove(request("a").key)
    assert queue.head() is None
