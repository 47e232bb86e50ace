"""The first of a ranking is the lowest, whatever came, changed its rank or left, and what left takes no room."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.ranking import Ranking


@given(st.lists(st.tuples(st.integers(0, 6), st.none() | st.integers(0, 9)), max_size=80))
@settings(max_examples=100, deadline=None)
def test_it_agrees_with_a_dictionary(changes: list[tuple[int, int | None]]) -> None:
    ranking: Ranking[int] = Ranking()
    slow: dict[int, tuple[float, int]] = {}
    for count, (key, rank) in enumerate(changes):
        if rank is None:
            ranking.discard(key)
            slow.pop(key, None)
        else:
            ranking.put(key, (float(rank), count))
            slow[key] = (float(rank), count)
        assert ranking.first() == min(slow, key=slow.__getitem__, default=None)
        assert ranking.ordered() == sorted(slow, key=slow.__getitem__)
        assert len(ranking) == len(slow)


def test_what_left_takes_no_room_for_long() -> None:
    ranking: Ranking[int] = Ranking()
    ranking.put(-1, (-1.0, 0))
    for number in range(10_000):
        ranking.put(number, (1.0, number))
        ranking.discard(number)
    assert len(ranking._heap) < 100
