"""Sessions over real gRPC: order, overtaking, silence, loss and refusal."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
import pytest

from services.core.errors import KVIncompatible
from services.pb import session_pb2, session_pb2_grpc
from services.runtime.faults import Faults
from services.runtime.server import Parts, serving
from services.runtime.session import PROTOCOL, Acceptor, Session, Terms
from services.runtime.session_pool import SessionPool
from services.runtime.settings import ServiceSettings
from tests.support.processes import process_of

Down, Up = session_pb2.Down, session_pb2.Up

SEAMS = {"start": "scheduler.start"}


def terms(name: str, timeout: float = 5.0, **seams: float) -> Terms:
    hello = session_pb2.Hello(protocol=PROTOCOL, name=name, incarnation=f"{name}-life")
    faults = Faults({SEAMS[kind]: delay for kind, delay in seams.items()})
    return Terms(hello, timeout, faults, {kind: SEAMS[kind] for kind in seams})


class Recorder:
    """Keeps what it is told, and lets a test wait for it."""

    def __init__(self, refuse: bool = False) -> None:
        self.messages: asyncio.Queue[session_pb2.Up | session_pb2.Down] = asyncio.Queue()
        self.is_open = asyncio.Event()
        self.is_closed = asyncio.Event()
        self.live: Session[session_pb2.Up] | None = None
        self.closed_times = 0
        self._refuse = refuse

    def opened(self, session: Session[session_pb2.Up]) -> None:
        if self._refuse:
            raise KVIncompatible("other weights")
        self.live = session
        self.is_closed.clear()
        self.is_open.set()

    def received(self, session: Session[session_pb2.Up], message: session_pb2.Up, now: float) -> None:
        self.messages.put_nowait(message)

    def closed(self, session: Session[session_pb2.Up]) -> None:
        self.closed_times += 1
        self.is_open.clear()
        self.is_closed.set()


class Servicer(session_pb2_grpc.SessionServicer):
    def __init__(self, acceptor: Acceptor[session_pb2.Up, session_pb2.Down]) -> None:
        self._acceptor = acceptor

    async def Open(self, request: object, context: grpc.aio.ServicerContext) -> None:
        await self._acceptor.accept(context)


@asynccontextmanager
async def callee(receiver: Recorder, token: str = "", timeout: float = 5.0) -> AsyncIterator[str]:
    """A server that accepts sessions; yields its address."""
    async with process_of("decode", ServiceSettings(token=token, drain_seconds=0)) as (process, _):
        servicer = Servicer(Acceptor(Up, terms("callee", timeout), receiver))
        async with serving(process, parts(servicer)) as server:
            yield server.address


def parts(servicer: Servicer) -> Parts:
    return Parts(
        register=[lambda server: session_pb2_grpc.add_SessionServicer_to_server(servicer, server)],
        services=["diptych.internal.Session"],
        holdings=list,
    )


def caller(receiver: Recorder, token: str = "", timeout: float = 5.0, **seams: float) -> SessionPool:
    return SessionPool(
        Down,
        lambda channel: session_pb2_grpc.SessionStub(channel).Open,
        receiver,
        terms("caller", timeout, **seams),
        token,
    )


async def test_messages_arrive_in_order() -> None:
    ours, theirs = Recorder(), Recorder()
    async with callee(theirs) as address, caller(ours) as pool:
        pool.ensure(address)
        await ours.is_open.wait()
        session = pool.session(address)
        for index in range(100):
            session.send(Down(finish=session_pb2.Finish(index=index)))
        got = [await theirs.messages.get() for _ in range(100)]
    assert [message.finish.index for message in got] == list(range(100))


async def test_both_sides_hear_of_the_end_once() -> None:
    ours, theirs = Recorder(), Recorder()
    async with callee(theirs) as address:
        async with caller(ours) as pool:
            pool.ensure(address)
            await ours.is_open.wait()
        await theirs.is_closed.wait()
    assert (ours.closed_times, theirs.closed_times) == (1, 1)


async def test_a_lost_session_is_dialled_again() -> None:
    ours, theirs = Recorder(), Recorder()
    async with callee(theirs) as address, caller(ours) as pool:
        pool.ensure(address)
        await ours.is_open.wait()
        await theirs.is_open.wait()
        theirs.live.end()
        await ours.is_closed.wait()
        await ours.is_open.wait()
        assert pool.session(address).peer.name == "callee"


async def test_silence_ends_a_session() -> None:
    """The caller's writer is held up for longer than the callee's patience."""
    ours, theirs = Recorder(), Recorder()
    async with callee(theirs, timeout=0.7) as address, caller(ours, start=30.0) as pool:
        pool.ensure(address)
        await ours.is_open.wait()
        pool.session(address).send(Down(start=session_pb2.Start(request_id="a")))
        async with asyncio.timeout(5):
            await theirs.is_closed.wait()


async def test_an_idle_session_lives_on_by_its_ticks() -> None:
    ours, theirs = Recorder(), Recorder()
    async with callee(theirs, timeout=0.8) as address, caller(ours, timeout=0.8) as pool:
        pool.ensure(address)
        await ours.is_open.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.0):
                await theirs.is_closed.wait()
    assert theirs.closed_times == 1


async def test_a_refused_peer_is_never_live(caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = Recorder(), Recorder(refuse=True)
    async with callee(theirs) as address, caller(ours) as pool:
        pool.ensure(address)
        async with asyncio.timeout(5):
            while "refuses the session: other weights" not in caplog.text:
                await asyncio.sleep(0.01)
        assert pool.session(address) is None
    assert ours.live is None
    assert (ours.closed_times, theirs.closed_times) == (0, 0)


async def test_a_session_without_the_token_is_refused() -> None:
    ours, theirs = Recorder(), Recorder()
    async with callee(theirs, token="secret") as address:
        async with grpc.aio.insecure_channel(address) as channel:
            call = session_pb2_grpc.SessionStub(channel).Open()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        async with caller(ours, token="secret") as pool:
            pool.ensure(address)
            await ours.is_open.wait()
