"""A real nats-server for a test, and a bus that loses what a test wants it to lose."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from services.cli.child import lifeline_pipe
from services.cli.nats_server import NatsServer
from services.runtime.bus import Bus, Listener


class Nats:
    """Can be stopped and started again at the same address."""

    def __init__(self, server: NatsServer, lifeline_end: int) -> None:
        self._server = server
        self._lifeline_end = lifeline_end

    @property
    def url(self) -> str:
        return self._server.url

    async def start(self) -> None:
        await self._server.start(os.environ, self._lifeline_end, lambda: None)

    async def stop(self) -> None:
        await self._server.stop()


@asynccontextmanager
async def nats_server(directory: Path) -> AsyncIterator[Nats]:
    with lifeline_pipe() as lifeline_end:
        nats = Nats(NatsServer(directory, 0, "token"), lifeline_end)
        await nats.start()
        try:
            yield nats
        finally:
            await nats.stop()


class LossyBus(Bus):
    """Loses what would be heard while `is_losing`."""

    is_losing = False
    lost = 0

    def listen(self, subject: str, listener: Listener) -> None:
        def heard(payload: bytes, headers: dict[str, str]) -> None:
            if self.is_losing:
                self.lost += 1
            else:
                listener(payload, headers)

        super().listen(subject, heard)
