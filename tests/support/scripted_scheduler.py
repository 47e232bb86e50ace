"""A scheduler that answers as a test tells it to, over real sessions on a real server."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import grpc.aio

from services.core.errors import DiptychError
from services.core.ids import RequestKey
from services.core.ledger import Segment
from services.core.request import FinishReason
from services.pb import session_pb2
from services.runtime.codec import failed_event, finished_event, key_from_pb, tokens_event
from services.runtime.session import PROTOCOL, Session, Terms
from services.runtime.session_server import SessionServer
from tests.support.scripted_runner import scripted_logprobs

Up = session_pb2.Up


class Started:
    """One attempt as the scheduler was asked for it."""

    def __init__(self, start: session_pb2.Start, session: Session[Up]) -> None:
        self.start = start
        self.key: RequestKey = key_from_pb(start)
        self.session = session
        self.cancelled = asyncio.Event()
        self.finish_index: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._sent = len(start.emitted)

    def emit(self, ids: Iterable[int], segments: Iterable[Segment] = ()) -> None:
        """Sends the next tokens, with scripted log probabilities if they were asked for."""
        listed, drawing = list(ids), self.start.sampling
        most = drawing.logprobs if drawing.HasField("logprobs") else None
        logprobs = [one for token in listed if (one := scripted_logprobs(token, most))]
        self._send(tokens_event(self.key, self._sent, listed, segments, logprobs))
        self._sent += len(listed)

    def finish(self, reason: FinishReason = FinishReason.STOP, segments: Iterable[Segment] = ()) -> None:
        event = finished_event(self.key, reason, segments, cached_tokens=3)
        event.finished.decode, event.finished.why = "decode-0", "the only one"
        self._send(event)

    def fail(self, error: DiptychError) -> None:
        self._send(failed_event(self.key, error))

    def _send(self, event: session_pb2.Event) -> None:
        self.session.send(Up(events=session_pb2.Events(events=[event])))


Script = Callable[[Started], None]


class ScriptedScheduler:
    """Puts what it is asked for into `started`, or lets `script` answer at once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.address = ""
        self.script: Script | None = None
        self.started: asyncio.Queue[Started] = asyncio.Queue()
        self._held: dict[RequestKey, Started] = {}
        self._sessions: list[Session[Up]] = []

    @property
    def is_connected(self) -> bool:
        return bool(self._sessions)

    def holds(self, started: Started) -> bool:
        """Whether it was this one that was asked."""
        return self._held.get(started.key) is started

    def end_sessions(self) -> None:
        """As if the process had died."""
        for session in self._sessions:
            session.end()

    def reset(self) -> None:
        """Forgets script and requests; sessions stay."""
        self.script = None
        self.started = asyncio.Queue()
        self._held.clear()

    def opened(self, session: Session[Up]) -> None:
        self._sessions.append(session)

    def received(self, session: Session[Up], message: session_pb2.Down, now: float) -> None:
        match message.WhichOneof("kind"):
            case "start":
                started = Started(message.start, session)
                self._held[started.key] = started
                if self.script is not None:
                    self.script(started)
                self.started.put_nowait(started)
            # What was forgotten may still be cancelled: an exception here would end the session under the next test.
            case "cancel" if held := self._held.get(key_from_pb(message.cancel)):
                held.cancelled.set()
            case "finish" if held := self._held.get(key_from_pb(message.finish)):
                held.finish_index.set_result(message.finish.index)

    def closed(self, session: Session[Up]) -> None:
        self._sessions.remove(session)


@asynccontextmanager
async def scripted_scheduler(name: str = "scheduler-0", port: int = 0) -> AsyncIterator[ScriptedScheduler]:
    """One on `port`, 0 being any that is free."""
    scheduler = ScriptedScheduler(name)
    hello = session_pb2.Hello(protocol=PROTOCOL, name=name, incarnation=f"{name}-life")
    server = grpc.aio.server()
    SessionServer(Terms(hello, timeout=5.0), scheduler).register(server)
    scheduler.address = f"127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
    await server.start()
    try:
        yield scheduler
    finally:
        await server.stop(grace=None)
