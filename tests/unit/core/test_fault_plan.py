"""A fault plan strikes where, how and when it says, the same in every run, and knows only what is in its tables."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import services
from services.core.fault_plan import (
    AMOUNTS,
    NOTHING,
    SEAMS,
    WHEN,
    Deed,
    Detour,
    FaultPlan,
    NarrowLink,
    corrupted,
)


def struck(plan: FaultPlan, passages: int, seam: str = "kv.part") -> list[int]:
    """Numbers of the passages at which something happens."""
    return [number for number in range(passages) if plan.at(seam) != NOTHING]


def test_nothing_happens_where_nothing_is_planted() -> None:
    plan = FaultPlan({"kv.put": 0.5})
    assert struck(plan, 10) == [] and plan.rate("kv.part") is None


def test_a_number_is_a_delay_at_every_passage() -> None:
    plan = FaultPlan({"kv.put": 0.5})
    assert [plan.at("kv.put") for _ in range(3)] == [Deed(delay=0.5)] * 3


@pytest.mark.parametrize(
    ("seam", "plant", "deed"),
    [
        ("kv.part", {"delay": 0.1}, Deed(delay=0.1)),
        ("kv.part", {"drop": 1}, Deed(drop=True)),
        ("kv.part", {"duplicate": 2}, Deed(copies=3)),
        ("kv.part", {"corrupt": True}, Deed(corrupt=True)),
        ("kv.part", {"reorder": 4}, Deed(hold_back=4)),
        ("kv.out", {"pause": 1}, Deed(fate="pause")),
        ("store.step", {"die": 1, "delay": 0.1}, Deed(delay=0.1, fate="die")),
        ("kv.get", {"throttle": 1e6}, NOTHING),
        ("kv.part", {"corrupt": 0}, NOTHING),
    ],
)
def test_every_kind_becomes_its_deed(seam: str, plant: dict[str, float], deed: Deed) -> None:
    assert FaultPlan({seam: plant}).at(seam) == deed


def test_a_throttle_is_a_rate_and_counts_nothing() -> None:
    plan = FaultPlan({"kv.get": {"throttle": 1e6, "after": 9}})
    assert plan.rate("kv.get") == 1e6


@pytest.mark.parametrize(
    ("when", "numbers"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"after": 5}, [5, 6, 7]),
        ({"every": 3}, [0, 3, 6]),
        ({"after": 2, "every": 3}, [2, 5]),
        ({"times": 2}, [0, 1]),
        ({"after": 1, "every": 2, "times": 3}, [1, 3, 5]),
    ],
)
def test_it_strikes_by_count(when: dict[str, float], numbers: list[int]) -> None:
    assert struck(FaultPlan({"kv.part": {"drop": 1, **when}}), 8) == numbers


@given(seed=st.integers(0, 2**32), chance=st.floats(0.2, 0.8))
def test_chance_is_drawn_from_the_seed_and_repeats_in_every_run(seed: int, chance: float) -> None:
    plants = {"kv.part": {"drop": 1, "chance": chance, "seed": seed}}
    first = struck(FaultPlan(plants), 400)
    assert first == struck(FaultPlan(plants), 400)
    assert abs(len(first) / 400 - chance) < 0.15


def test_other_seeds_strike_elsewhere() -> None:
    runs = [struck(FaultPlan({"kv.part": {"drop": 1, "chance": 0.5, "seed": seed}}), 50) for seed in range(5)]
    assert all(one != other for one, other in pairwise(runs))


@pytest.mark.parametrize(
    "plants",
    [
        {"kv.pat": 1},
        {"kv.put": {"drop": 1}},
        {"kv.part": {"drops": 1}},
        {"kv.part": {"drop": -1}},
        {"kv.part": {"delay": float("nan")}},
        {"kv.part": {"drop": 1, "every": 0}},
        {"kv.part": {"drop": 1, "chance": 0}},
        {"kv.part": {"drop": 1, "chance": 2}},
    ],
)
def test_what_cannot_be_planted_is_refused(plants: dict[str, float | dict[str, float]]) -> None:
    with pytest.raises(ValueError, match=r"seam|planted|finite|every"):
        FaultPlan(plants)


def test_the_tables_know_the_same_kinds() -> None:
    assert frozenset().union(*SEAMS.values()) == AMOUNTS.keys()
    assert not AMOUNTS.keys() & WHEN.keys()


def test_every_seam_has_its_place_in_the_code() -> None:
    sources = [path for path in Path(services.__path__[0]).rglob("*.py") if path.name != "fault_plan.py"]
    named = set(re.findall(r'"([a-z]+\.[a-z_]+)"', "\n".join(path.read_text() for path in sources)))
    # A worker's step is named after its service.
    assert 'f"{identity.service}.step"' in "\n".join(path.read_text() for path in sources)
    assert SEAMS.keys() - {"prefill.step", "decode.step"} <= named


# --- the way of things


@given(st.lists(st.builds(Deed, drop=st.booleans(), copies=st.integers(1, 3), hold_back=st.integers(0, 3))))
def test_whatever_is_not_dropped_arrives_once_for_each_copy(deeds: list[Deed]) -> None:
    detour: Detour[int] = Detour()
    arrived = [each for number, deed in enumerate(deeds) for each in detour.after(number, deed)] + detour.rest()
    expected = [number for number, deed in enumerate(deeds) if not deed.drop for _ in range(deed.copies)]
    assert sorted(arrived) == expected and detour.rest() == []


def test_what_is_held_back_is_overtaken_by_as_many_as_planted() -> None:
    detour: Detour[int] = Detour()
    deeds = [Deed(hold_back=2), NOTHING, NOTHING, NOTHING]
    assert [detour.after(number, deed) for number, deed in enumerate(deeds)] == [[], [1], [2, 0], [3]]


def test_without_deeds_things_pass_in_order() -> None:
    detour: Detour[int] = Detour()
    assert [detour.after(number, NOTHING) for number in range(3)] == [[0], [1], [2]]


@given(sizes=st.lists(st.integers(1, 1000), min_size=1), gap=st.floats(0, 0.1))
def test_a_narrow_link_never_carries_more_than_its_rate(sizes: list[int], gap: float) -> None:
    link, rate = NarrowLink(1000.0), 1000.0
    across = [number * gap + link.seconds(size, number * gap) for number, size in enumerate(sizes)]
    assert across == sorted(across)
    for number in range(len(sizes)):
        assert across[-1] - number * gap >= sum(sizes[number:]) / rate - 1e-6


@given(st.binary(min_size=1))
def test_a_corrupted_copy_differs_in_one_bit(content: bytes) -> None:
    wrong = corrupted(content)
    assert len(wrong) == len(content)
    assert sum((one ^ other).bit_count() for one, other in zip(content, wrong, strict=True)) == 1
