"""NATS: where processes announce themselves. Advisory: everything works on with what is known while it is away.

Connecting happens in the background and for ever, so a bus that is absent, stopped or restarted empty stops nothing.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

log = logging.getLogger(__name__)

RECONNECT_SECONDS = 1
Listener = Callable[[bytes, dict[str, str]], None]


class Bus:
    """One connection to NATS. An async context manager; with an empty URL it is a bus on which nothing is heard."""

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name
        self._client: Client | None = None
        self._listeners: list[tuple[str, Listener]] = []
        self._connecting: asyncio.Task[None] | None = None
        self._is_closing = False
        self.connected_since: float | None = None
        """Monotonic time since when the bus has been there without a break; None while it is away."""

    async def __aenter__(self) -> Self:
        if self._url:
            self._connecting = asyncio.create_task(self._connect(), name="bus-connect")
            self._connecting.add_done_callback(_say_why)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closing = True
        if self._connecting:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self._client:
            # Also one that is still connecting has a socket by now.
            await self._client.close()

    def listen(self, subject: str, listener: Listener) -> None:
        """Calls `listener(payload, headers)` for every message on `subject`. To be called before entering."""
        self._listeners.append((subject, listener))

    async def publish(self, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> None:
        """Sends, or drops the message while the bus is away: whoever publishes says it again soon."""
        if self._client is None or not self._client.is_connected:
            return
        with suppress(nats.errors.Error):
            await self._client.publish(subject, payload, headers=headers)

    async def flush(self) -> None:
        """Waits until what was published has reached the server; gives up after a second."""
        if self._client is None or not self._client.is_connected:
            return
        try:
            await self._client.flush(timeout=1)
        except (nats.errors.Error, TimeoutError):
            log.info("the bus went away before everything was sent")

    async def _connect(self) -> None:
        client = self._client = Client()
        await client.connect(
            self._url,
            name=self._name,
            allow_reconnect=True,
            max_reconnect_attempts=-1,
            reconnect_time_wait=RECONNECT_SECONDS,
            connect_timeout=2,
            ping_interval=5,
            max_outstanding_pings=2,
            pending_size=0,
            disconnected_cb=self._disconnected,
            reconnected_cb=self._reconnected,
            error_cb=self._quiet,
        )
        for subject, listener in self._listeners:
            await client.subscribe(subject, cb=_spread(listener))
        await self._reconnected()

    async def _disconnected(self) -> None:
        if self.connected_since is not None and not self._is_closing:
            log.warning("the bus is away; going on with what is known")
        self.connected_since = None

    async def _reconnected(self) -> None:
        self.connected_since = time.monotonic()
        log.info("the bus is there")

    async def _quiet(self, error: Exception) -> None:
        log.debug("bus: %s", type(error).__name__)


def _say_why(connecting: asyncio.Task[None]) -> None:
    """Connecting goes on for ever; it ends only by a fault, such as a URL that is none."""
    if not connecting.cancelled() and (error := connecting.exception()):
        log.error("this process has no bus: %s", type(error).__name__)


def _spread(listener: Listener) -> Callable[[Msg], Awaitable[None]]:
    async def heard(message: Msg) -> None:
        listener(message.data, dict(message.headers or {}))

    return heard
