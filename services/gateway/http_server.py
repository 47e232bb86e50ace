"""uvicorn on the process's own event loop. Signals are the process's, so uvicorn must not take them."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import ASGIApp

from services.core.errors import InternalError

MAX_HEAD_BYTES = 64 << 10
"""Of a request line with its headers; more is refused."""
CUT_SECONDS = 1
"""What still runs so long after the drain is cancelled."""


class _Server(uvicorn.Server):
    """Says when it listens, and leaves signals alone."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def http_serving(app: ASGIApp, listener: socket.socket) -> AsyncIterator[None]:
    """Serves `app` on a bound socket for the length of the block."""
    config = uvicorn.Config(
        app,
        # Not httptools: that one takes heads of any length, and forgets pipelined requests whose client has left.
        http="h11",
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=CUT_SECONDS,
    )
    server = _Server(config)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve(sockets=[listener]), name="http-server")
        await server.listening.wait()
        try:
            yield
        finally:
            server.should_exit = True


def bound(address: str) -> socket.socket:
    """A socket bound to `host:port`; port 0 takes a free one. Raises InternalError if that cannot be."""
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), int(port)))
    except OSError as error:
        listener.close()
        raise InternalError(f"cannot listen on {address}: {error.strerror}") from error
    listener.setblocking(False)
    return listener
