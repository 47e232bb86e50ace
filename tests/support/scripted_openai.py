"""An OpenAI-compatible server without a model: HTTP by hand on a real socket, so that pieces leave one by one.

Every answer goes piece by piece, a turn of the loop each. A prompt of `LONG` ids or more first waits until all other
answers have sent `BESIDE` more pieces, as it would beside a batch.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

LONG = 1000
BESIDE = 5
HEAD = b"HTTP/1.1 %d x\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


class ScriptedOpenAI:
    """`bodies` are the requests that came; `missing` tokens are left out of every answer."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.missing = 0
        self.status = 200
        self.address = ""
        self._sent = asyncio.Condition()
        self._pieces = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        body = json.loads(await reader.readexactly(length))
        self.bodies.append(body)
        writer.write(HEAD % self.status)
        with suppress(ConnectionError):
            if self.status == 200:
                await self._stream(body, writer)
            writer.close()
            await writer.wait_closed()

    async def _stream(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if len(body["prompt"]) >= LONG:
            async with self._sent:
                enough = self._pieces + BESIDE
                await self._sent.wait_for(lambda: self._pieces >= enough)
        tokens = body["max_tokens"] - self.missing
        for _ in range(tokens):
            await self._send(writer, {"choices": [{"text": "word ", "finish_reason": None}]})
            async with self._sent:
                self._pieces += 1
                self._sent.notify_all()
        await self._send(writer, {"choices": [{"text": "", "finish_reason": "length"}]})
        await self._send(writer, {"choices": [], "usage": {"completion_tokens": tokens}})
        writer.write(b"data: [DONE]\n\n")

    async def _send(self, writer: asyncio.StreamWriter, chunk: dict[str, Any]) -> None:
        writer.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        await writer.drain()
        await asyncio.sleep(0)


@asynccontextmanager
async def scripted_openai() -> AsyncIterator[ScriptedOpenAI]:
    scripted = ScriptedOpenAI()
    server = await asyncio.start_server(scripted.answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    scripted.address = f"{host}:{port}"
    async with server:
        yield scripted
