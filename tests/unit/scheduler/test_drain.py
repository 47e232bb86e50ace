"""How long until a place comes free: exact where all stay equally long, right on the average where they do not."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.drain import Drain


def filled(capacity: int, begins: list[float], stay: float = 10.0) -> Drain:
    """Of a known mean stay; `begins` are those that run."""
    drain = Drain()
    drain.began("first", -100.0)
    drain.ended("first", -100.0 + stay)
    for index, begin in enumerate(begins):
        drain.began(index, begin)
    return drain


def test_while_nobody_has_left_nothing_is_known_and_nobody_is_put_off() -> None:
    drain = Drain()
    drain.began("a", 0.0)
    assert drain.wait(5, 1, 100.0) == 0.0


def test_the_first_places_are_free_at_once() -> None:
    drain = filled(4, [0.0, 0.0])
    assert drain.wait(2, 4, 1.0) == 0.0
    assert drain.wait(3, 4, 1.0) > 0


def test_after_a_burst_nobody_leaves_before_its_stay_is_over() -> None:
    drain = filled(4, [0.0, 0.0, 0.0, 0.0])
    assert abs(drain.wait(1, 4, 1.0) - 9.0) < 1e-3
    assert abs(drain.wait(4, 4, 1.0) - 9.0) < 1e-3
    assert abs(drain.wait(8, 4, 1.0) - 20.0) < 1e-3


def test_those_overdue_leave_evenly_over_another_stay() -> None:
    drain = filled(4, [-50.0] * 4)
    assert [round(drain.wait(position, 4, 0.0), 3) for position in (1, 2, 4)] == [2.5, 5.0, 10.0]


@given(st.lists(st.floats(-30, 0), min_size=1, max_size=20), st.integers(1, 60), st.integers(1, 25))
@settings(max_examples=100, deadline=None)
def test_who_is_further_back_never_waits_less(begins: list[float], position: int, capacity: int) -> None:
    drain = filled(capacity, begins)
    assert drain.wait(position, capacity, 0.0) <= drain.wait(position + 1, capacity, 0.0) + 1e-6


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=60))
@settings(max_examples=100, deadline=None)
def test_the_books_of_who_has_a_place_balance(facts: list[tuple[int, bool]]) -> None:
    drain, held = Drain(), set()
    for now, (key, begins) in enumerate(facts):
        if begins:
            drain.began(key, float(now))
            held.add(key)
        else:
            drain.ended(key, float(now))
            held.discard(key)
        assert drain.running == len(held)


def test_in_a_steady_state_of_any_lengths_the_prediction_is_true_on_the_average() -> None:
    """Twenty places that are always taken, stays of very different lengths: predicted against what then happened."""
    random, drain, capacity = Random(7), Drain(), 20
    ends = sorted((random.expovariate(1 / 10), index) for index in range(capacity))
    for _, index in ends:
        drain.began(index, 0.0)
    predicted, released = [], []
    for number in range(capacity, 4000):
        now, gone = ends.pop(0)
        drain.ended(gone, now)
        released.append(now)
        drain.began(number, now)
        ends.append((now + random.expovariate(1 / 10), number))
        ends.sort()
        predicted.append((now, drain.wait(40, capacity, now)))
    actual = [released[index + 40] - now for index, (now, _) in enumerate(predicted[:-40])]
    mean_error = sum(wait - true for (_, wait), true in zip(predicted, actual, strict=False)) / len(actual)
    assert abs(mean_error) < 0.1 * 10 * 40 / capacity
