"""What is started and stopped for a wish."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.errors import CommandError
from services.cli.layout import ClusterLayout, Wiring, added
from services.cli.scaling import LEAST, parsed, planned, service_of

POOLS = st.fixed_dictionaries({service: st.sets(st.integers(0, 6), min_size=1, max_size=5) for service in LEAST})
WISHES = st.dictionaries(st.sampled_from(sorted(LEAST)), st.integers(1, 8))


@given(POOLS, WISHES)
def test_every_pool_gets_its_size_with_low_numbers_and_nobody_else_is_touched(
    pools: dict[str, set[int]], wish: dict[str, int]
) -> None:
    living = {f"{service}-{number}" for service, numbers in pools.items() for number in numbers}
    plan = planned({*living, "gateway-0"}, wish)
    assert not set(plan.starting) & living
    assert set(plan.stopping) <= living
    for service, numbers in pools.items():
        size = wish.get(service, len(numbers))
        left = set(numbers)
        while len(left) > size:
            left.remove(max(left))
        while len(left) < size:
            left.add(min(set(range(20)) - left))
        after = living - set(plan.stopping) | set(plan.starting)
        assert {name for name in after if service_of(name) == service} == {f"{service}-{number}" for number in left}


@pytest.mark.parametrize("wish", [{"decode": 0}, {"scheduler": 0}, {"kvstore": 0}, {"decode": 65}, {"prefill": -1}])
def test_what_could_not_answer_is_refused(wish: dict[str, int]) -> None:
    with pytest.raises(CommandError):
        planned(["decode-0", "prefill-0", "kvstore-0", "scheduler-0"], wish)


@pytest.mark.parametrize(
    "words", [[], ["gateway=2"], ["decode"], ["decode=x"], ["decode=-1"], ["decode=1", "decode=2"]]
)
def test_words_that_are_no_wish_are_refused(words: list[str]) -> None:
    with pytest.raises(CommandError):
        parsed(words)


def test_a_new_worker_has_no_core_that_is_somebodys() -> None:
    layout = ClusterLayout(prefill=1, decode=1, processors=(0, 1))
    wiring = Wiring("nats://token@127.0.0.1:4222", "127.0.0.1:4317", "token")
    again, new = added(layout, wiring, "decode", 0), added(layout, wiring, "decode", 1)
    assert (again.environment["DIPTYCH_DECODE__CORES"], again.processors) == ("[0]", (0,))
    assert (new.environment["DIPTYCH_DECODE__CORES"], new.processors) == ("[]", (1,))
