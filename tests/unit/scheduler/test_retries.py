"""The conductor alone: who is begun anew after a loss, who is refused, and what becomes of all when it leaves."""

import time
from collections.abc import AsyncIterator

import pytest

from services.core.errors import Draining
from services.core.ids import RequestId, RequestKey
from services.pb import session_pb2
from services.runtime import codec
from services.scheduler.cluster_view import ClusterView
from services.scheduler.conductor import Conductor
from services.scheduler.settings import Settings
from tests.support.processes import process_of
from tests.unit.scheduler.test_conductor import World, tokens_of
from tests.unit.scheduler.test_policy import worker

BURST = 2


@pytest.fixture
async def world() -> AsyncIterator[World]:
    chosen = Settings(retry_burst=BURST, retry_share=0.0, retry_rate=0.0, queue_timeout=5.0, trial_seconds=0.0)
    async with process_of("scheduler", chosen) as (process, _):
        view = ClusterView()
        made = World(Conductor(process, view), view)
        yield made
        made.conductor.closed(made.line)
        assert made.conductor.num_tickets == made.conductor.num_waiting == 0
        assert not view.placed


def loses(world: World, name: str) -> None:
    world.view.drop(f"{name}:1")
    world.conductor.lost(f"{name}:1")


def failures(world: World) -> list[str]:
    return [event.failed.reason for event in world.line.heard if event.HasField("failed")]


async def test_all_in_flight_are_begun_anew_once_and_beyond_the_budget_they_fail_at_once(world: World) -> None:
    world.view.update(worker("a", max_running=8))
    for number in range(8):
        world.start(f"r{number}")
    world.view.update(worker("b", max_running=8))
    loses(world, "a")
    assert [address for address, _ in world.sent] == ["a:1"] * 8 + ["b:1"] * 8
    for number in range(8):
        event = tokens_of(f"r{number}", 1, 0, *range(8, 17))
        world.conductor.heard("b:1", session_pb2.Events(events=[event]), time.monotonic())
    world.view.update(worker("c", max_running=8))
    loses(world, "b")
    assert failures(world) == ["WorkerLost"] * 8
    assert all(event.failed.retry_after > 0 for event in world.line.heard if event.HasField("failed"))
    world.start("fresh")
    assert world.kinds("fresh") == [("c:1", "start")], "those that were never begun are let in"


async def test_a_worker_that_leaves_spends_nothing_and_a_long_stream_does_not_count_as_having_waited(
    world: World,
) -> None:
    world.view.update(worker("a"))
    world.start("long")
    [(_, down)] = world.sent
    world.conductor.heard("a:1", session_pb2.Events(events=[tokens_of("long", 0, 0, 5)]), time.monotonic())
    an_hour_later = time.monotonic() + 3600
    leaves = codec.failed_event(RequestKey(RequestId("long"), 0), Draining("leaving"))
    world.conductor.heard("a:1", session_pb2.Events(events=[leaves]), an_hour_later)
    assert failures(world) == []
    ticket = world.conductor._tickets[RequestKey(RequestId("long"), 1)]
    assert ticket.queued_until == pytest.approx(an_hour_later + 5.0)
    assert down.start.request_id == "long"


async def test_a_scheduler_that_leaves_gives_everything_back_and_cancels_it(world: World) -> None:
    world.view.update(worker("a", max_running=1))
    world.start("running")
    world.start("waiting")
    world.conductor.hand_back()
    assert failures(world) == ["Draining"] * 2
    assert world.kinds("running") == [("a:1", "start"), ("a:1", "cancel")]
    assert world.kinds("waiting") == []


async def test_suspects_of_one_death_are_begun_one_at_a_time_until_they_get_on() -> None:
    async with process_of("scheduler", Settings(trial_seconds=60.0)) as (process, _):
        view = ClusterView()
        world = World(Conductor(process, view), view)
        view.update(worker("a"))
        for name in ("x", "y"):
            world.start(name)
        view.update(worker("b"))
        world.view.drop("a:1")
        world.conductor.lost("a:1")
        [first] = [message.start.request_id for address, message in world.sent if address == "b:1"]
        some, enough = tokens_of(first, 1, 0, *range(7)), tokens_of(first, 1, 7, 7)
        world.conductor.heard("b:1", session_pb2.Events(events=[some]), time.monotonic())
        assert len([each for each in world.sent if each[0] == "b:1"]) == 1
        world.conductor.heard("b:1", session_pb2.Events(events=[enough]), time.monotonic())
        begun = {message.start.request_id for address, message in world.sent if address == "b:1"}
        assert begun == {"x", "y"}
        world.conductor.closed(world.line)
