"""Admission as the conductor does it: what gateways and workers are told, and what is counted."""

from collections.abc import AsyncIterator

import pytest

from services.core.ids import RequestId, RequestKey
from services.core.request import FinishReason, Request, Sampling, Stopping
from services.pb import session_pb2
from services.runtime import codec
from services.runtime.metrics import Metrics
from services.scheduler.cluster_view import ClusterView
from services.scheduler.conductor import Conductor
from services.scheduler.settings import Settings
from tests.support.processes import process_of
from tests.unit.scheduler.test_conductor import World
from tests.unit.scheduler.test_policy import worker

CLASSES = {
    "gold": {"level": 2, "weight": 4, "workers": ["*-any", "*-gold"]},
    "default": {"workers": ["*-any"]},
    "batch": {"level": -1, "max_running": 0.5, "workers": ["*-any"]},
}


class AdmissionWorld(World):
    """Requests of clients and classes, and what became of each."""

    metrics: Metrics

    def ask(self, name: str, traffic_class: str = "", client: str = "", prompt: int = 3, priority: int = 0) -> None:
        key = RequestKey(RequestId(name))
        request = Request(
            key,
            tuple(range(prompt)),
            Sampling(),
            Stopping(8),
            client=client,
            traffic_class=traffic_class,
            priority=priority,
        )
        self.tell(session_pb2.Down(start=codec.start_to_pb(request, 0.0, "")))

    def finish(self, name: str) -> None:
        [*_, (address, start)] = [(to, down.start) for to, down in self.sent if down.start.request_id == name]
        event = codec.finished_event(codec.key_from_pb(start), FinishReason.STOP)
        self.conductor.heard(address, session_pb2.Events(events=[event]), 0.0)

    def started(self) -> list[str]:
        """Names, in the order in which they were begun."""
        return [down.start.request_id for _, down in self.sent if down.WhichOneof("kind") == "start"]

    def failures(self) -> dict[str, session_pb2.Failed]:
        return {event.request_id: event.failed for event in self.line.heard if event.WhichOneof("kind") == "failed"}

    def loads(self) -> dict[str, tuple[int, int, int]]:
        """(running, waiting, shed) by class."""
        return {load.name: (load.running, load.waiting, load.shed) for load in self.conductor.class_loads()}


@pytest.fixture
async def world() -> AsyncIterator[AdmissionWorld]:
    settings = Settings(max_queue=3, classes=CLASSES, patience=1000.0)
    async with process_of("scheduler", settings) as (process, _):
        view = ClusterView()
        made = AdmissionWorld(Conductor(process, view), view)
        made.metrics = process.metrics
        yield made
        made.conductor.closed(made.line)
        assert made.conductor.num_tickets == made.conductor.num_waiting == 0
        assert all(load[:2] == (0, 0) for load in made.loads().values())


async def test_one_clients_burst_does_not_delay_anothers_request_by_more_than_one(world: AdmissionWorld) -> None:
    world.view.update(worker("d-any", max_running=1))
    for name in ("a0", "a1", "a2"):
        world.ask(name, client="a")
    world.ask("b", client="b")
    for name in ("a0", "a1", "b", "a2"):
        world.finish(name)
    assert world.started() == ["a0", "a1", "b", "a2"]


async def test_the_least_important_is_shed_at_once_with_a_time_to_come_back_and_it_is_seen(
    world: AdmissionWorld,
) -> None:
    world.view.update(worker("d-any", max_running=1))
    for name, traffic_class in (("run", ""), ("b0", "batch"), ("b1", "batch"), ("plain", "")):
        world.ask(name, traffic_class)
    assert world.failures() == {}
    world.ask("gold", "gold")
    assert world.failures().keys() == {"b1"}
    assert (world.failures()["b1"].reason, world.failures()["b1"].retry_after > 0) == ("Overloaded", True)
    assert world.loads() == {"default": (1, 1, 0), "gold": (0, 1, 0), "batch": (0, 1, 1)}
    assert b'diptych_shed_total{traffic_class="batch"} 1.0' in world.metrics.exposition()


async def test_what_never_fits_is_refused_at_arrival_although_all_places_are_taken(world: AdmissionWorld) -> None:
    world.view.update(worker("d-any", max_running=1, blocks_total=2))
    world.ask("run")
    world.ask("large", prompt=40)
    assert world.failures()["large"].reason == "NeverFits"
    assert world.conductor.num_waiting == 0


async def test_a_class_uses_its_own_workers_and_is_not_held_up_by_one_that_has_none(world: AdmissionWorld) -> None:
    world.view.update(worker("d-any", max_running=1))
    world.view.update(worker("d-gold", max_running=1))
    for name in ("run", "waits"):
        world.ask(name)
    world.ask("gold", "gold")
    assert {(to, down.start.request_id) for to, down in world.sent} == {("d-any:1", "run"), ("d-gold:1", "gold")}


async def test_a_class_at_its_share_leaves_the_other_places_to_others(world: AdmissionWorld) -> None:
    world.view.update(worker("d-any", max_running=4))
    for name in ("b0", "b1", "b2"):
        world.ask(name, "batch")
    world.ask("plain")
    assert world.started() == ["b0", "b1", "plain"]
    assert world.loads()["batch"] == (2, 1, 0)
    world.finish("b0")
    assert world.started()[-1] == "b2"


async def test_a_worker_hears_the_level_of_the_class_and_not_the_clients_own_priority(world: AdmissionWorld) -> None:
    world.view.update(worker("d-any", max_running=1))
    world.ask("run", "gold")
    world.ask("late", client="a")
    world.ask("urgent", client="a", priority=5)
    world.finish("run")
    world.finish("urgent")
    assert world.started() == ["run", "urgent", "late"]
    starts = [down.start for _, down in world.sent if down.WhichOneof("kind") == "start"]
    assert [(start.priority, start.client, start.traffic_class) for start in starts] == [
        (2, "", ""),
        (0, "", ""),
        (0, "", ""),
    ]
