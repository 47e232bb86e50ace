"""Gateways without clients: they start requests and check that each token comes once and in order."""

import asyncio
from collections.abc import Callable

from services.core.ids import RequestId, RequestKey
from services.core.request import Request, Sampling, Stopping
from services.pb import session_pb2
from services.runtime import codec
from services.runtime.session import Session

MOST_TOKENS = 1 << 20


class CountingGateway:
    """One session with the scheduler."""

    def __init__(self, name: str, told: Callable[[int], None]) -> None:
        self.name = name
        self.is_open = asyncio.Event()
        self.is_over = asyncio.Event()
        self.tokens = 0
        self.segments = 0
        self._told = told
        """Called with the number of tokens of each message."""
        self._next: dict[str, int] = {}
        self._session: Session[session_pb2.Down] | None = None

    def opened(self, session: Session[session_pb2.Down]) -> None:
        self._session = session
        self.is_open.set()

    def closed(self, session: Session[session_pb2.Down]) -> None:
        self._session = None

    def start(self, number: int, prompt: tuple[int, ...]) -> None:
        """One more request."""
        name = f"{self.name}-{number}"
        self._next[name] = 0
        request = Request(RequestKey(RequestId(name)), prompt, Sampling(), Stopping(MOST_TOKENS))
        assert self._session is not None
        self._session.send(session_pb2.Down(start=codec.start_to_pb(request, 0.0, "")))

    def received(self, session: Session[session_pb2.Down], message: session_pb2.Up, now: float) -> None:
        tokens = 0
        for event in message.events.events:
            name = event.request_id
            if event.HasField("tokens"):
                assert event.tokens.first_index == self._next[name], "a token is missing, or came twice"
                count = len(event.tokens.ids)
                self._next[name] += count
                tokens += count
            else:
                assert event.HasField("finished"), "a request failed"
                self.segments += len(event.segments)
                del self._next[name]
        self.tokens += tokens
        self._told(tokens)
        if not self._next:
            self.is_over.set()
