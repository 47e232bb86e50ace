"""The reader's side of a pull: parts, of which one is read ahead while another is taken, and credit for more."""

import asyncio
from typing import Self

import grpc.aio

from services.pb import kvstore_pb2

CREDIT = 8
"""So many parts may be on their way to a reader that has taken none of them."""
LOT = 4
"""Credit is given back by so many at once."""


class PartStream:
    """One call; an async context manager."""

    def __init__(
        self, call: "grpc.aio.StreamStreamCall[kvstore_pb2.PullDown, bytes]", wanted: kvstore_pb2.PullOpen
    ) -> None:
        self._call = call
        self._wanted = wanted
        self._ahead: asyncio.Task[object] | None = None
        """Reads what comes next."""
        self._taken = 0

    async def next(self) -> bytes:
        """The next part; empty if there is none. The one before has been taken."""
        self._taken += 1
        if self._taken > LOT:
            self._taken -= LOT
            await self._call.write(kvstore_pb2.PullDown(credit=LOT))
        raw = await self._read()
        return raw if isinstance(raw, bytes) else b""

    async def finish(self) -> None:
        """Nothing more is wanted: the store ends the call, and not because it was cancelled."""
        await self._call.done_writing()
        while isinstance(await self._read(), bytes):
            pass

    async def __aenter__(self) -> Self:
        self._wanted.credit = CREDIT
        await self._call.write(kvstore_pb2.PullDown(open=self._wanted))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._call.cancel()
        if self._ahead:
            self._ahead.cancel()
            await asyncio.wait([self._ahead])
            if not self._ahead.cancelled():
                self._ahead.exception()

    async def _read(self) -> object:
        found = await (self._ahead or self._call.read())
        is_last = not isinstance(found, bytes) or not found
        self._ahead = None if is_last else asyncio.create_task(self._call.read(), name="pull-ahead")
        return found
