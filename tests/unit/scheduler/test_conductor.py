"""The conductor alone, with a recorder where its workers would be: what it sends, and when."""

from collections.abc import AsyncIterator

import pytest

from services.core.block_facts import Facts, Stock, short
from services.core.blocks import BlockNames
from services.core.errors import Draining
from services.core.ids import RequestId, RequestKey
from services.core.request import Request, Sampling, Stopping
from services.pb import session_pb2
from services.runtime import codec
from services.scheduler.cluster_view import ClusterView
from services.scheduler.conductor import Conductor
from services.scheduler.settings import Settings
from tests.support.processes import process_of
from tests.unit.scheduler.test_policy import FINGERPRINT, FORMAT, worker


class Line:
    """Stands for a session with a gateway."""

    is_open = True

    def __init__(self, fingerprint: str = "") -> None:
        self.peer = session_pb2.Hello(name="gateway", incarnation="life", fingerprint=fingerprint)
        self.heard: list[session_pb2.Event] = []

    def send(self, message: session_pb2.Up) -> None:
        self.heard.extend(message.events.events)


class World:
    """A conductor, and everything it told workers."""

    def __init__(self, conductor: Conductor, view: ClusterView) -> None:
        self.conductor, self.view = conductor, view
        self.line = Line()
        self.sent: list[tuple[str, session_pb2.Down]] = []
        conductor.send = self.send

    def send(self, address: str, message: session_pb2.Down) -> bool:
        self.sent.append((address, message))
        return True

    def start(self, name: str) -> None:
        request = Request(RequestKey(RequestId(name)), (1, 2, 3), Sampling(), Stopping(8))
        self.tell(session_pb2.Down(start=codec.start_to_pb(request, 0.0, "")))

    def tell(self, message: session_pb2.Down) -> None:
        self.conductor.received(self.line, message, 0.0)

    def kinds(self, name: str) -> list[tuple[str, str]]:
        """(worker, kind) of all that was said about a request."""
        said = []
        for address, message in self.sent:
            kind = str(message.WhichOneof("kind"))
            if getattr(message, kind).request_id == name:
                said.append((address, kind))
        return said


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with process_of("scheduler", Settings()) as (process, _):
        view = ClusterView()
        made = World(Conductor(process, view), view)
        yield made
        made.conductor.closed(made.line)
        assert made.conductor.num_tickets == made.conductor.num_waiting == 0
        assert not view.placed


async def test_a_place_that_a_cancellation_frees_is_given_at_once(world: World) -> None:
    world.view.update(worker("d", max_running=1))
    world.start("first")
    world.start("second")
    assert world.kinds("second") == []
    world.tell(session_pb2.Down(cancel=session_pb2.Cancel(request_id="first")))
    assert world.kinds("first") == [("d:1", "start"), ("d:1", "cancel")]
    assert world.kinds("second") == [("d:1", "start")]


async def test_a_worker_that_drains_is_not_asked_again_and_costs_no_attempt(world: World) -> None:
    for name in ("d1", "d2"):
        world.view.update(worker(name))
    world.start("a")
    [(first, _)] = world.kinds("a")
    key = RequestKey(RequestId("a"), 0)
    refusal = session_pb2.Events(events=[codec.failed_event(key, Draining("leaving"))])
    world.conductor.heard(first, refusal, 0.0)
    [_, (second, kind)] = world.kinds("a")
    assert (second != first, kind) == (True, "start")
    assert world.line.heard == []


async def test_only_workers_of_the_gateways_model_are_asked(world: World) -> None:
    world.line = Line(fingerprint="model-a")
    world.view.update(worker("d", fingerprint="model-b"))
    world.start("a")
    assert world.kinds("a") == []
    world.view.update(worker("e", fingerprint="model-a"))
    world.conductor.assign()
    assert world.kinds("a") == [("e:1", "start")]


async def test_a_finish_for_a_queued_story_takes_it_out_of_the_queue(world: World) -> None:
    world.start("a")
    world.tell(session_pb2.Down(finish=session_pb2.Finish(request_id="a", index=0)))
    assert world.conductor.num_waiting == 0
    assert [event.WhichOneof("kind") for event in world.line.heard] == ["finished"]
    world.view.update(worker("d"))
    world.conductor.assign()
    assert world.sent == []


@pytest.mark.parametrize("is_split", [True, False])
async def test_whoever_computes_the_prompt_is_told_which_stores_have_its_beginning(
    world: World, is_split: bool
) -> None:
    prompt = tuple(range(40))
    names = BlockNames(b"").of(prompt, bytes.fromhex(FINGERPRINT), 16)
    world.view.prefixes.hear(Facts(Stock("k", "k:1", "life", FINGERPRINT, FORMAT), 1, tuple(map(short, names))))
    world.view.update(worker("d"))
    if is_split:
        world.view.update(worker("p", "prefill"))
    request = Request(RequestKey(RequestId("a")), prompt, Sampling(), Stopping(8))
    world.tell(session_pb2.Down(start=codec.start_to_pb(request, 0.0, "")))
    told = {address: [tuple(source) for source in codec.sources_from_pb(down.start)] for address, down in world.sent}
    assert told == ({"d:1": [], "p:1": [("k:1", 2)]} if is_split else {"d:1": [("k:1", 2)]})
