"""The way out of one request's answers to its client: one message at a time, and the last one once."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.core.errors import DeadlinePassed
from services.gateway.answer import Answer, Delta
from services.gateway.call import Caller, Done
from services.gateway.live_request import LiveRequest
from services.gateway.settings import Settings
from services.runtime.process import Process


class Outlet:
    """Shared by all answers of a request. A client that does not read is cut, with everything it asked for."""

    def __init__(self, process: Process[Settings], live: LiveRequest, caller: Caller) -> None:
        self._process = process
        self._live = live
        self._caller = caller
        self._open = len(live.answers)
        """Answers that have not ended."""
        self._turn = asyncio.Lock()

    async def send(self, delta: Delta) -> None:
        """A part of an answer, unless there is nothing in it."""
        if delta.is_empty:
            return
        async with self._turn:
            await self._send(delta)

    async def end(self, answer: Answer) -> None:
        """An answer is complete: its last part, and after the last answer the last message, with the ledger."""
        async with self._turn:
            self._open -= 1
            if self._open:
                await self._send(answer.take_delta())
            else:
                await self._finish(answer)

    async def _send(self, delta: Delta) -> None:
        async with self._patience():
            await self._caller.send(delta)
        self._note_text(delta)

    async def _finish(self, answer: Answer) -> None:
        live = self._live
        await self._process.faults.wait("gateway.stream")
        delta = answer.take_delta()
        live.account = answer
        closing = live.close(time.monotonic())
        assert delta.reason is not None, "an answer that ends has a reason"
        done = Done(live.head, delta.reason, live.usage, closing, live.answers[0].seed)
        async with self._patience():
            await self._caller.finish(delta, done)
        self._note_text(delta)

    def _note_text(self, delta: Delta) -> None:
        """Time to first token is taken when the first text has left."""
        live = self._live
        if delta.text and live.first_text_at is None:
            live.first_text_at = time.monotonic()
            seconds = live.first_text_at - live.call.received_at
            self._process.metrics.observe("diptych_time_to_first_token_seconds", seconds)

    @asynccontextmanager
    async def _patience(self) -> AsyncIterator[None]:
        """Around what waits for the client."""
        seconds = self._process.settings.slow_client_seconds
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise DeadlinePassed(f"the client did not read its answer for {seconds:g} s") from None
