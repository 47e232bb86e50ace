"""Classes: who gives way, who passes whom, and what each may have."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.core.errors import Overloaded
from services.core.ids import RequestId, RequestKey
from services.core.request import Request, Sampling, Stopping
from services.runtime.settings import load
from services.scheduler.admission import Queue
from services.scheduler.classes import TrafficClass
from services.scheduler.settings import Settings

GOLD, BATCH = TrafficClass("gold", level=1), TrafficClass("batch", level=-1)


def request(name: str, traffic_class: str = "", client: str = "") -> Request:
    key = RequestKey(RequestId(name))
    return Request(key, (1,), Sampling(), Stopping(4), client=client, traffic_class=traffic_class)


def names(queue: Queue, now: float = 0.0) -> list[str]:
    """Heads in order, none of which finds room."""
    return [head.key.request_id for head in queue.candidates(now)]


def stall(queue: Queue, now: float) -> None:
    """There are workers for the first head, and no room."""
    head = next(queue.candidates(now))
    queue.stalled(head.key, now)


def test_when_the_queue_is_full_the_least_important_class_gives_way_and_is_told() -> None:
    queue = Queue(2, 60.0, [GOLD, BATCH])
    queue.push(request("batch", "batch"), 0.0)
    queue.push(request("plain"), 0.0)
    queue.push(request("gold", "gold"), 0.0)
    [(gone, error)] = queue.expired(0.0)
    assert (gone.key.request_id, type(error)) == ("batch", Overloaded)
    queue.push(request("gold too", "gold"), 0.0)
    assert [gone.key.request_id for gone, _ in queue.expired(0.0)] == ["plain"]
    for late in ("batch", "", "gold"):
        with pytest.raises(Overloaded):
            queue.push(request("late", late), 0.0)


def test_in_a_full_class_the_client_with_the_most_waiting_gives_way_to_one_with_none() -> None:
    queue = Queue(3, 60.0)
    for index in range(3):
        queue.push(request(f"burst {index}", client="burst"), float(index))
    queue.push(request("single", client="single"), 3.0)
    assert [gone.key.request_id for gone, _ in queue.expired(3.0)] == ["burst 2"]
    with pytest.raises(Overloaded):
        queue.push(request("burst 3", client="burst"), 3.0)


def test_a_class_at_its_own_bound_costs_no_other_class() -> None:
    queue = Queue(10, 60.0, [TrafficClass("gold", level=1, max_queue=1), BATCH])
    queue.push(request("batch", "batch"), 0.0)
    queue.push(request("gold", "gold"), 0.0)
    with pytest.raises(Overloaded):
        queue.push(request("gold too", "gold"), 0.0)
    assert queue.expired(0.0) == []


def test_one_that_had_a_place_never_gives_way() -> None:
    queue = Queue(1, 60.0, [GOLD, BATCH])
    queue.push_back(request("lost", "batch"), 0.0, None)
    with pytest.raises(Overloaded):
        queue.push(request("gold", "gold"), 0.0)


@given(st.lists(st.sampled_from(["gold", "", "batch"]), min_size=1, max_size=60), st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_under_overload_the_important_class_is_refused_only_by_itself(order: list[str], most: int) -> None:
    queue = Queue(most, 60.0, [GOLD, BATCH])
    gold = 0
    for index, name in enumerate(order):
        try:
            queue.push(request(f"{index}", name), 0.0)
            gold += name == "gold"
        except Overloaded:
            assert name != "gold" or gold == most
        assert not [gone for gone, _ in queue.expired(0.0) if gone.traffic_class == "gold"]
        assert len(queue) <= most


def test_a_head_without_room_blocks_neither_other_classes_nor_other_models() -> None:
    queue = Queue(10, 60.0, [GOLD])
    queue.push(request("large"), 0.0, "m")
    queue.push(request("gold", "gold"), 0.0, "m")
    queue.push(request("other model"), 0.0, "n")
    queue.push(request("behind"), 0.0, "m")
    assert names(queue) == ["large", "gold", "other model"]


def test_one_that_is_passed_for_too_long_has_room_left_for_it_by_all_who_could_use_its_workers() -> None:
    elsewhere = TrafficClass("elsewhere", workers=("own-*",))
    queue = Queue(10, 60.0, [GOLD, TrafficClass("default", workers=("d-*",)), elsewhere], patience=2.0)
    queue.push(request("large"), 0.0, "m")
    queue.push(request("gold", "gold"), 0.0, "m")
    queue.push(request("elsewhere", "elsewhere"), 0.0, "m")
    queue.push(request("other model"), 0.0, "n")
    stall(queue, 0.0)
    everybody = ["large", "gold", "elsewhere", "other model"]
    assert names(queue, 1.9) == everybody
    assert names(queue, 2.0) == ["large", "elsewhere", "other model"]
    queue.remove(request("large").key)
    queue.push(request("next"), 2.0, "m")
    assert "gold" in names(queue, 2.0)


def test_a_head_that_stands_in_nobodys_way_is_not_kept_room_for() -> None:
    """Nobody said that there are workers for it."""
    queue = Queue(10, 60.0, [GOLD], patience=0.0)
    queue.push(request("no workers"), 0.0)
    queue.push(request("gold", "gold"), 0.0)
    assert names(queue, 100.0) == ["no workers", "gold"]


def test_the_large_one_is_not_starved_by_small_ones_of_other_classes() -> None:
    """It needs both places, the others one each; they come as fast as places come free."""
    queue = Queue(1000, 1e9, [GOLD], patience=5.0)
    queue.push(request("large"), 0.0)
    running: list[float] = [0.5, 1.0]
    for now in range(1, 40):
        queue.push(request(f"small {now}", "gold"), float(now))
        running = [end for end in running if end > now]
        for head in queue.candidates(float(now)):
            needs = 2 if head.key.request_id == "large" else 1
            if len(running) + needs <= 2:
                queue.take(head.key, 1.0)
                running += [now + 2.5] * needs
                if needs == 2:
                    assert now <= 9
                    return
            else:
                queue.stalled(head.key, float(now))
    pytest.fail("the large one never had its place")


def test_a_class_has_no_more_places_than_its_share_and_no_more_credit_for_it() -> None:
    queue = Queue(100, 60.0, [TrafficClass("batch", max_running=0.25)])
    queue.capacity = 8
    for index in range(10):
        queue.push(request(f"b{index}", "batch"), 0.0)
        queue.push(request(f"p{index}"), 0.0)
    order = []
    while head := next(queue.candidates(0.0), None):
        order.append(queue.take(head.key, 1.0))
        if order[-1].traffic_class == "batch":
            queue.note_running("batch", 1)
    assert [each.traffic_class for each in order].count("batch") == 2
    for index in range(10, 20):
        queue.push(request(f"p{index}"), 0.0)
    list(queue.candidates(0.0))
    queue.note_running("batch", -2)
    following = [queue.take(next(queue.candidates(0.0)).key, 1.0).traffic_class for _ in range(4)]
    assert following.count("batch") == 2


def test_gathered_requests_wait_for_the_window_and_then_go_in_order_of_share() -> None:
    queue = Queue(100, 60.0, gathering=0.5)
    for index in range(3):
        queue.push(request(f"a{index}", client="a"), 0.1 * index)
    queue.push(request("b", client="b"), 0.4)
    assert names(queue, 0.49) == []
    assert queue.next_expiry() == 0.5
    order = []
    while head := next(queue.candidates(0.5), None):
        order.append(queue.take(head.key, 1.0).key.request_id)
    assert order == ["a0", "b", "a1", "a2"]
    queue.push(request("later"), 1.0)
    assert names(queue, 1.4) == [] and names(queue, 1.5) == ["later"]


def test_classes_are_read_from_the_settings_and_what_cannot_be_is_refused() -> None:
    made = Settings(classes={"gold": {"weight": 2, "level": 1, "workers": ["d-*"]}})
    assert made.queue().classes.of("gold") == TrafficClass("gold", weight=2.0, level=1, workers=("d-*",))
    assert made.queue().classes.of("unknown").name == "default"
    for wrong in ({"weight": 0}, {"max_running": 1.5}, {"wieght": 1}, {"shares": {"a": 0}}):
        with pytest.raises(ValueError, match="gold"):
            Settings(classes={"gold": wrong})


def test_classes_come_from_the_file_and_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "diptych.toml"
    file.write_text(
        '[scheduler.classes.batch]\nlevel = -1\nworkers = ["decode-*"]\n[scheduler.classes.batch.shares]\na = 2'
    )
    made = load(Settings, "scheduler", file).queue().classes.of("batch")
    assert made == TrafficClass("batch", level=-1, workers=("decode-*",), shares={"a": 2.0})
    monkeypatch.setenv("DIPTYCH_SCHEDULER__CLASSES", '{"gold": {"weight": 3}}')
    assert load(Settings, "scheduler", tmp_path / "none").queue().classes.of("gold").weight == 3.0
    monkeypatch.setenv("DIPTYCH_SCHEDULER__CLASSES", '{"gold": {"weight": -3}}')
    with pytest.raises(SystemExit, match=r"classes\.gold\.weight"):
        load(Settings, "scheduler", tmp_path / "none")
