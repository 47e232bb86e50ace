"""The conductor alone, with a recorder where its workers would be: what it sends, and when."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from services.core.block_facts import Facts, Stock, short
from services.core.blocks import BlockNames
from services.core.errors import Draining
from services.core.ids import RequestId, RequestKey
from services.core.request import FinishReason, Request, Sampling, Stopping
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
        self.messages = 0

    def send(self, message: session_pb2.Up) -> None:
        self.messages += 1
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
    world.conductor.heard(first, refusal, time.monotonic())
    [_, (second, kind)] = world.kinds("a")
    assert (second != first, kind) == (True, "start")
    assert world.line.heard == []


async def test_only_workers_of_the_gateways_model_are_asked(world: World) -> None:
    world.line = Line(fingerprint="aa" * 32)
    world.view.update(worker("d", fingerprint="bb" * 32))
    world.start("a")
    assert world.kinds("a") == []
    world.view.update(worker("e", fingerprint="aa" * 32))
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


def tokens_of(name: str, attempt: int, first: int, *ids: int) -> session_pb2.Event:
    return codec.tokens_event(RequestKey(RequestId(name), attempt), first, ids)


async def test_tokens_leave_under_the_gateways_name_each_once_and_those_of_two_workers_together(world: World) -> None:
    for name in ("d1", "d2"):
        world.view.update(worker(name, max_running=1))
        world.start(f"on-{name}")
    places = {message.start.request_id: address for address, message in world.sent}
    for first, ids in ((0, (5,)), (1, (6, 7)), (1, (6, 7, 8))):
        for name, address in places.items():
            world.conductor.heard(address, session_pb2.Events(events=[tokens_of(name, 0, first, *ids)]), 0.0)
        await asyncio.sleep(0)
    for name in places:
        told = [event for event in world.line.heard if event.request_id == name]
        assert [(event.tokens.first_index, tuple(event.tokens.ids)) for event in told] == [
            (0, (5,)),
            (1, (6, 7)),
            (3, (8,)),
        ]
        assert all(event.attempt == 0 for event in told)
    assert world.line.messages == 2 + 1 + 2, "what only goes on is gathered, what is more is not"


async def test_a_later_attempts_tokens_bear_the_attempt_that_the_gateway_knows(world: World) -> None:
    request = Request(RequestKey(RequestId("a"), 3), (1, 2, 3), Sampling(), Stopping(8))
    world.view.update(worker("d"))
    world.tell(session_pb2.Down(start=codec.start_to_pb(request, 0.0, "")))
    for first in range(3):
        world.conductor.heard("d:1", session_pb2.Events(events=[tokens_of("a", 3 * 256, first, first)]), 0.0)
    await asyncio.sleep(0)
    assert [(event.attempt, *event.tokens.ids) for event in world.line.heard] == [(3, 0), (3, 1), (3, 2)]


async def test_the_last_event_says_what_every_place_was_weighed_against(world: World) -> None:
    for name in ("d1", "d2"):
        world.view.update(worker(name))
    world.start("a")
    [(first, _)] = world.kinds("a")
    fault = session_pb2.Events(events=[codec.failed_event(RequestKey(RequestId("a"), 0), Draining("leaving"))])
    world.conductor.heard(first, fault, time.monotonic())
    [_, (second, _)] = world.kinds("a")
    end = codec.finished_event(RequestKey(RequestId("a"), 1), FinishReason.LENGTH)
    world.conductor.heard(second, session_pb2.Events(events=[tokens_of("a", 1, 0, 5), end]), 0.0)
    [*_, last] = world.line.heard
    assert [(place.attempt, place.decode) for place in last.placements] == [(0, first), (1, second)]
    weighed = [sorted(each.worker for each in place.candidates) for place in last.placements]
    assert weighed == [["d1", "d2"], [second.removesuffix(":1")]]
    for candidate in last.placements[0].candidates:
        assert candidate.cost_seconds == pytest.approx(sum(term.seconds for term in candidate.terms))


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
