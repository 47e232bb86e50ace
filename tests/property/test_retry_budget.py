"""However requests come and are lost, no more are begun anew than the budget allows; all in flight may be once."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.retry_budget import RetryBudget

SHARE, RATE, BURST = 0.25, 2.0, 8
MOMENTS = st.lists(st.tuples(st.sampled_from(["came", "lost"]), st.integers(0, 40), st.floats(0, 1)), max_size=120)


@given(MOMENTS)
@settings(max_examples=100, deadline=None)
def test_what_is_begun_anew_is_bounded_over_every_stretch_of_time(moments: list[tuple[str, int, float]]) -> None:
    budget, now = RetryBudget(SHARE, RATE, BURST), 0.0
    came: list[float] = []
    taken: list[tuple[float, int]] = []
    for kind, in_flight, pause in moments:
        now += pause
        if kind == "came":
            budget.came()
            came.append(now)
        elif budget.take(in_flight, now):
            taken.append((now, in_flight))
    for begin, (first, _) in enumerate(taken):
        for end in range(begin, len(taken)):
            last = taken[end][0]
            fresh = sum(first <= at <= last for at in came)
            most = max([BURST, *(in_flight for _, in_flight in taken[begin : end + 1])])
            assert end - begin + 1 <= most + SHARE * fresh + RATE * (last - first) + 1e-6


@given(st.integers(1, 200), st.integers(0, 200))
@settings(max_examples=50, deadline=None)
def test_after_a_quiet_time_all_in_flight_may_begin_anew_once(in_flight: int, before: int) -> None:
    budget = RetryBudget(SHARE, RATE, BURST)
    for _ in range(before):
        budget.take(in_flight, 0.0)
    later = max(before, in_flight) / RATE
    assert all(budget.take(in_flight, later) for _ in range(in_flight))
    assert not budget.take(0, later) or in_flight < BURST
