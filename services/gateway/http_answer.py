"""One answer over HTTP: a JSON body in, OpenAI's JSON out, whole or as server-sent events."""

import asyncio
import time
from contextlib import suppress

from starlette.types import Receive, Scope, Send

from services.core.errors import DiptychError, InvalidRequest
from services.gateway.answer import Delta
from services.gateway.ask import Ask
from services.gateway.call import Call, Done, Head, cleaned_id
from services.gateway.generations import Generations
from services.gateway.http_body import BodyTooLarge, ClientLeft, discard_body, read_body, while_connected
from services.gateway.http_reply import HttpReply
from services.gateway.json_fields import parsed
from services.gateway.openai_ask import Form, chat_ask, completion_ask, form_of
from services.gateway.openai_reply import STREAM_END, Shapes, error_body, event
from services.gateway.validation import Limits
from services.runtime.edge import opaque

DISCARD_TIMES = 4
"""Of a body that is too large, this many times the limit is still taken in while the refusal is on its way."""
DISCARD_SECONDS = 2.0
REFUSE_SECONDS = 2.0


class Answering:
    """The ASGI application of one route: chat or completions."""

    def __init__(self, generations: Generations, *, is_chat: bool, max_body_bytes: int) -> None:
        self._generations = generations
        self._is_chat = is_chat
        self._limit = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = _call_of(scope, time.monotonic(), is_chat=self._is_chat)
        reply = HttpReply(send)
        try:
            body = await read_body(scope, receive, self._limit)
            await while_connected(receive, self._answer(call, body, reply))
        except ClientLeft:
            return
        except BodyTooLarge:
            error = InvalidRequest(f"the body may have at most {self._limit} bytes")
            await reply.announce(413, error_body(error), [])
            await discard_body(receive, self._limit * DISCARD_TIMES, DISCARD_SECONDS)
            await reply.end()

    async def _answer(self, call: Call, body: bytes, reply: HttpReply) -> None:
        try:
            async with self._generations.taken_up(call) as live:
                reply.add_headers(_head_headers(live.head, call))
                caller = HttpCaller(body, live.head, reply, self._generations.limits, is_chat=self._is_chat)
                await self._generations.answer(live, caller)
        except DiptychError as error:
            await _refuse(reply, error)
        except Exception as error:  # noqa: BLE001 - the HTTP edge: a stranger learns only an id, the log has the rest
            await _refuse(reply, opaque(error))


async def _refuse(reply: HttpReply, error: DiptychError) -> None:
    """A client that does not read its answer does not read of its end either; it is not waited for."""
    with suppress(TimeoutError):
        async with asyncio.timeout(REFUSE_SECONDS):
            await reply.fail(error)


class HttpCaller:
    """The client's side of one answer."""

    def __init__(self, body: bytes, head: Head, reply: HttpReply, limits: Limits, *, is_chat: bool) -> None:
        self._body = body
        self._is_chat = is_chat
        self._limits = limits
        self._reply = reply
        self._form = Form()
        self._shapes = Shapes(head, int(time.time()), is_chat=is_chat)
        self._texts: list[str] = []

    def ask(self) -> Ask:
        body = parsed(self._body)
        self._body = b""
        self._form = form_of(body)
        return chat_ask(body, self._limits) if self._is_chat else completion_ask(body)

    async def send(self, delta: Delta) -> None:
        if not self._form.is_stream:
            self._texts.append(delta.text)
        elif raw := await self._text_events(delta.text):
            await self._reply.push(raw, more=True)

    async def finish(self, delta: Delta, done: Done) -> None:
        if not self._form.is_stream:
            text = "".join(self._texts) + delta.text
            await self._reply.whole(200, self._shapes.whole(text, done), [])
            return
        raw = await self._text_events(delta.text)
        closing = self._shapes.closing(done, with_usage=self._form.with_usage)
        await self._reply.push(raw + b"".join(map(event, closing)) + STREAM_END, more=False)

    async def _text_events(self, text: str) -> bytes:
        """Events for `text`; the first call begins the response."""
        chunks = [self._shapes.text(text)] if text else []
        if not self._reply.has_begun:
            await self._reply.begin_events()
            chunks = self._shapes.opening() + chunks
        return b"".join(map(event, chunks))


def _call_of(scope: Scope, received_at: float, *, is_chat: bool) -> Call:
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    return Call(
        received_at=received_at,
        operation="chat" if is_chat else "text_completion",
        traceparent=headers.get(b"traceparent", ""),
        client_request_id=cleaned_id(headers.get(b"x-request-id", "")),
    )


def _head_headers(head: Head, call: Call) -> list[tuple[bytes, bytes]]:
    headers = [(b"x-request-id", head.request_id.encode()), (b"x-trace-id", head.trace_id.encode())]
    if call.client_request_id:
        headers.append((b"x-client-request-id", call.client_request_id.encode()))
    return headers
