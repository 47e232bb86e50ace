"""Tokens of short steps share a message; nothing else waits, and order is kept."""

import asyncio
from dataclasses import dataclass, field
from typing import cast

from services.pb import session_pb2
from services.runtime.duty import UpSession
from services.runtime.letters import Letters

LONG = 3600.0


@dataclass
class Heard:
    """A session that keeps what it is to send."""

    is_open: bool = True
    messages: list[list[int]] = field(default_factory=list)
    """The tokens of each, which are named by their index."""
    events: list[int] = field(default_factory=list)
    """How many each had."""
    came: asyncio.Event = field(default_factory=asyncio.Event)

    def send(self, message: session_pb2.Up) -> None:
        self.messages.append([token - 7 for event in message.events.events for token in event.tokens.ids])
        self.events.append(len(message.events.events))
        self.came.set()

    @property
    def session(self) -> UpSession:
        return cast(UpSession, self)


def token(index: int, request: str = "one") -> session_pb2.Event:
    return session_pb2.Event(request_id=request, tokens=session_pb2.Tokens(first_index=index, ids=[7 + index]))


async def test_tokens_within_the_window_share_the_next_message() -> None:
    heard, letters = Heard(), Letters(LONG)
    for index in range(4):
        letters.add(heard.session, [token(index)], can_wait=True)
    assert heard.messages == [[0]]
    letters.add(heard.session, [token(4)])
    assert heard.messages == [[0], [1, 2, 3, 4]] and heard.events == [1, 1]
    letters.closed(heard.session)


async def test_what_waits_is_sent_when_the_window_is_over_though_nothing_follows() -> None:
    heard, letters = Heard(), Letters(0.001)
    letters.add(heard.session, [token(0)])
    heard.came.clear()
    letters.add(heard.session, [token(1)], can_wait=True)
    async with asyncio.timeout(10):
        await heard.came.wait()
    assert heard.messages == [[0], [1]]


async def test_an_end_leaves_after_the_tokens_that_waited_and_answers_are_kept_apart() -> None:
    heard, letters = Heard(), Letters(LONG)
    letters.add(heard.session, [token(0)])
    letters.add(heard.session, [token(1), token(5, "other")], can_wait=True)
    letters.add(heard.session, [token(2)], can_wait=True)
    letters.add(heard.session, [session_pb2.Event(finished=session_pb2.Finished())])
    assert heard.messages == [[0], [1, 2, 5]] and heard.events == [1, 3]
    letters.closed(heard.session)


async def test_without_a_window_each_step_has_its_message() -> None:
    heard, letters = Heard(), Letters(0)
    for index in range(3):
        letters.add(heard.session, [token(index)], can_wait=True)
    assert heard.messages == [[0], [1], [2]]


async def test_nothing_is_sent_to_a_session_that_has_ended() -> None:
    ended, other, letters = Heard(), Heard(), Letters(0.001)
    for heard in (ended, other):
        letters.add(heard.session, [token(0)])
        letters.add(heard.session, [token(1)], can_wait=True)
    other.came.clear()
    letters.closed(ended.session)
    # Its timer would have been the first.
    async with asyncio.timeout(10):
        while len(other.messages) < 2:
            await other.came.wait()
    assert ended.messages == [[0]] and other.messages == [[0], [1]]


async def test_nothing_is_sent_to_a_session_that_is_ending() -> None:
    heard, letters = Heard(is_open=False), Letters(LONG)
    letters.add(heard.session, [token(0)])
    assert heard.messages == []
