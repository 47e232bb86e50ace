"""A link that can be cut: a relay in front of a process, whose address the process announces as its own."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

LOOPBACK = "127.0.0.1"
PIECE = 1 << 16


class Link:
    """While it is cut no byte passes, in either direction, and nobody is told; new connections hang."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.address = ""
        self._is_whole = asyncio.Event()
        self._is_whole.set()
        self._relays: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        self._is_whole.clear()

    def mend(self) -> None:
        self._is_whole.set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        try:
            await self._is_whole.wait()
            with suppress(OSError):
                host, port = self.target.rsplit(":", 1)
                there, back = await asyncio.open_connection(host, int(port))
                await asyncio.gather(self._relay(reader, back), self._relay(there, writer))
        finally:
            self._relays.discard(task)
            writer.close()

    async def close(self) -> None:
        """Nothing passes any more."""
        for task in list(self._relays):
            task.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)

    async def _relay(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                while piece := await source.read(PIECE):
                    await self._is_whole.wait()
                    sink.write(piece)
                    await sink.drain()
        finally:
            sink.close()


@asynccontextmanager
async def linked() -> AsyncIterator[Link]:
    """A link to a free port, for whoever is told to listen there."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        link = Link(f"{LOOPBACK}:{probe.getsockname()[1]}")
    server = await asyncio.start_server(link.accept, LOOPBACK, 0)
    link.address = f"{LOOPBACK}:{server.sockets[0].getsockname()[1]}"
    try:
        yield link
    finally:
        server.close()
        await link.close()
        await server.wait_closed()
