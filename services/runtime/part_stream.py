"""The reader's side of a pull: lots of parts, of which one is gathered while another is taken, and credit for more."""

from typing import Self

import grpc.aio

from services.pb import kvstore_pb2

LOT = 4
"""Parts that are taken at once: a hop to the thread that takes them costs as much as a part of its way."""
CREDIT = 3 * LOT
"""So many parts may be on their way to a reader that has taken none of them: one lot is taken, one is gathered, and
credit for the next is on its way."""


class PartStream:
    """One call; an async context manager."""

    def __init__(
        self, call: "grpc.aio.StreamStreamCall[kvstore_pb2.PullDown, bytes]", wanted: kvstore_pb2.PullOpen
    ) -> None:
        self._call = call
        self._wanted = wanted
        self._lots = 0
        """Given out."""
        self._is_over = False

    async def next(self) -> list[bytes]:
        """The next lot; less than a whole one only at the end, and then nothing. The one before the last is taken."""
        if self._is_over:
            return []
        if self._lots > 1:
            await self._call.write(kvstore_pb2.PullDown(credit=LOT))
        self._lots += 1
        lot: list[bytes] = []
        while len(lot) < LOT and not self._is_over:
            raw: object = await self._call.read()
            if isinstance(raw, bytes) and raw:
                lot.append(raw)
            else:
                self._is_over = True
        return lot

    async def finish(self) -> None:
        """Nothing more is wanted: the store ends the call, and not because it was cancelled."""
        await self._call.done_writing()
        while isinstance(await self._call.read(), bytes):
            pass

    async def __aenter__(self) -> Self:
        self._wanted.credit = CREDIT
        await self._call.write(kvstore_pb2.PullDown(open=self._wanted))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._call.cancel()
