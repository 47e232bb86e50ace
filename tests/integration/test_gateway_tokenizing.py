"""Long text is tokenized beside the loop, and a caller that leaves meanwhile leaves nothing."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from services.core.errors import ContextTooLong, NoWorkers
from services.gateway.answer import Delta
from services.gateway.ask import Ask, ChatMessage, ChatPrompt, Prompt, TextPrompt
from services.gateway.call import Call, Done
from services.gateway.conversation import INLINE_CHARACTERS
from services.gateway.generations import Generations
from services.gateway.records import Records
from services.gateway.schedulers import Schedulers
from services.gateway.settings import Settings
from services.pb import session_pb2
from services.runtime.session import Terms
from tests.support.byte_model import byte_model
from tests.support.processes import process_of


@dataclass
class Asking:
    """A caller that asks and gets no answer, for there is no scheduler."""

    prompt: Prompt

    def ask(self) -> Ask:
        return Ask(self.prompt)

    async def send(self, delta: Delta) -> None:
        raise AssertionError("nothing answers")

    async def finish(self, delta: Delta, done: Done) -> None:
        raise AssertionError("nothing answers")


@dataclass
class Desk:
    """Generations over a model that tells on which thread it tokenized, and holds until it may go on."""

    generations: Generations
    records: Records
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
    async with process_of("gateway", Settings(model=Path("unused"))) as (process, _):
        schedulers = Schedulers(process.bus, (), Terms(session_pb2.Hello(), 5.0), "")
        records = Records(4)
        async with schedulers:
            yield Desk(Generations(process, model, schedulers, records), records, began, go_on, threads)


async def test_short_text_is_tokenized_at_once(desk: Desk) -> None:
    with pytest.raises(NoWorkers):
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
    assert [holding.state for holding in desk.generations.holdings()] == ["tokenize"]
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert desk.generations.holdings() == []
    await desk.generations.idle()
    desk.go_on.set()
