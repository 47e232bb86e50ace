"""What a gateway does with a caller that asks for much, leaves early or does not read."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from services.core.errors import ContextTooLong, DeadlinePassed, Overloaded
from services.gateway.answer import Delta
from services.gateway.ask import Ask, ChatMessage, ChatPrompt, Prompt, TextPrompt
from services.gateway.call import Call, Done
from services.gateway.conversation import INLINE_CHARACTERS
from services.gateway.generations import Generations
from services.gateway.records import Records
from services.gateway.schedulers import Schedulers
from services.gateway.settings import Settings
from services.pb import session_pb2
from services.runtime.session import PROTOCOL, Terms
from tests.support.byte_model import byte_model
from tests.support.processes import process_of
from tests.support.scripted_scheduler import ScriptedScheduler, scripted_scheduler


@dataclass
class Asking:
    """A caller that never takes what is sent to it."""

    prompt: Prompt

    def ask(self) -> Ask:
        return Ask(self.prompt)

    async def send(self, delta: Delta) -> None:
        await asyncio.Event().wait()

    async def finish(self, delta: Delta, done: Done) -> None:
        await asyncio.Event().wait()


@dataclass
class Desk:
    """Generations over a model that tells on which thread it tokenized, and holds until it may go on."""

    generations: Generations
    records: Records
    scheduler: ScriptedScheduler
    began: threading.Event
    go_on: threading.Event
    threads: list[int]

    async def answer(self, prompt: Prompt) -> None:
        async with self.generations.taken_up(Call(time.monotonic(), "chat")) as live:
            await self.generations.answer(live, Asking(prompt))


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    began, go_on, threads = threading.Event(), threading.Event(), list[int]()
    go_on.set()

    def encode_text(text: str) -> list[int]:
        threads.append(threading.get_ident())
        began.set()
        go_on.wait(5)
        return list(text.encode())

    model = replace(byte_model(), encode_text=encode_text, encode_chat=lambda turns: encode_text(turns[0]["content"]))
    settings = Settings(model=Path("unused"), slow_client_seconds=0.2)
    async with process_of("gateway", settings) as (process, _), scripted_scheduler() as scheduler:
        terms = Terms(session_pb2.Hello(protocol=PROTOCOL), 5.0)
        schedulers, records = Schedulers(process.bus, (scheduler.address,), terms, ""), Records(4)
        async with schedulers:
            await schedulers.reachable.wait()
            generations = Generations(process, model, schedulers, records)
            yield Desk(generations, records, scheduler, began, go_on, threads)


async def test_short_text_is_tokenized_at_once(desk: Desk) -> None:
    desk.scheduler.script = lambda started: started.fail(Overloaded("full"))
    with pytest.raises(Overloaded):
        await desk.answer(TextPrompt("Hello"))
    assert desk.threads == [threading.get_ident()]


@pytest.mark.parametrize("is_chat", [False, True])
async def test_long_text_is_tokenized_on_a_thread(desk: Desk, is_chat: bool) -> None:
    text = "x" * (INLINE_CHARACTERS + 1)
    with pytest.raises(ContextTooLong):
        await desk.answer(ChatPrompt((ChatMessage("user", text),)) if is_chat else TextPrompt(text))
    assert desk.threads and desk.threads != [threading.get_ident()]


async def test_a_caller_that_leaves_while_its_text_is_tokenized_leaves_nothing(desk: Desk) -> None:
    desk.go_on.clear()
    answering = asyncio.create_task(desk.answer(TextPrompt("x" * (INLINE_CHARACTERS + 1))))
    await asyncio.to_thread(desk.began.wait, 5)
    assert [one.state for one in desk.generations.holdings() if one.kind == "request"] == ["tokenize"]
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert [holding.kind for holding in desk.generations.holdings()] == ["session"]
    await desk.generations.idle()
    desk.go_on.set()


@pytest.mark.parametrize("ends", [False, True])
async def test_a_caller_that_does_not_read_is_cut_and_others_are_not_held_up(desk: Desk, ends: bool) -> None:
    asking = asyncio.create_task(desk.answer(TextPrompt("slow")))
    started = await desk.scheduler.started.get()
    started.emit(b"abc")
    if ends:
        started.finish()
    desk.scheduler.script = lambda other: other.fail(Overloaded("full"))
    with pytest.raises(Overloaded):
        await desk.answer(TextPrompt("quick"))
    with pytest.raises(DeadlinePassed, match="did not read"):
        await asking
    if not ends:
        await asyncio.wait_for(started.cancelled.wait(), 2)
    assert desk.records.get(started.key.request_id).outcome == "DeadlinePassed"
