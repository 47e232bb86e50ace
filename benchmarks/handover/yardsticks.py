"""What the ways are measured by: plain copies, a plain TCP stream, and a gRPC stream that drops its bytes."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import numpy as np

from handover.ends import end
from handover.far_end import METHOD, PIECE_BYTES, tuned
from services.runtime import dial


class Copies:
    """One array copied into another and from there into a third, as a put and a get do; one thread."""

    def __init__(self, size: int) -> None:
        self._arrays = [np.full(size, number, np.uint8) for number in range(3)]

    def seconds(self) -> float:
        """Of both copies."""
        first, middle, last = self._arrays
        began = time.perf_counter()
        np.copyto(middle, first)
        np.copyto(last, middle)
        return time.perf_counter() - began


class Streams:
    """Connections to a far end, made by `far_end`."""

    def __init__(self, size: int, connection: socket.socket, channel: grpc.aio.Channel) -> None:
        self._connection = connection
        self._channel = channel
        self._into = np.zeros(size, np.uint8).data

    async def tcp_seconds(self) -> float:
        """Of all bytes into memory that is there already."""
        return await asyncio.to_thread(self._receive)

    async def grpc_seconds(self) -> float:
        """Of as many bytes in parts, which are looked at by nobody."""
        began, left = time.perf_counter(), len(self._into)
        send: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(f"/{METHOD}/Send")
        call = send(b"")
        while isinstance(part := await call.read(), bytes):
            left -= len(part)
        seconds = time.perf_counter() - began
        assert not left, "the far end sends all bytes"
        return seconds

    def _receive(self) -> float:
        began, there = time.perf_counter(), 0
        self._connection.send(b"?")
        while there < len(self._into):
            there += self._connection.recv_into(self._into[there : there + PIECE_BYTES])
        return time.perf_counter() - began


@asynccontextmanager
async def far_end(size: int, logs: Path) -> AsyncIterator[Streams]:
    """A process of its own that sends `size` bytes whenever it is asked."""
    async with end("handover.far_end", [str(size)], logs / "far-end.log") as process:
        ports = await process.answer()
        with tuned(socket.socket()) as connection:
            connection.connect(("127.0.0.1", ports["tcp"]))
            async with dial.channel(f"127.0.0.1:{ports['grpc']}") as channel:
                yield Streams(size, connection, channel)
