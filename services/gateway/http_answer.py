"""One request over HTTP: a JSON body in, OpenAI's JSON out, whole or as server-sent events."""

import asyncio
import math
import time
from contextlib import suppress

from starlette.types import Receive, Scope, Send

from services.core.errors import DiptychError, InvalidRequest
from services.gateway.answer import Delta
from services.gateway.ask import Ask
from services.gateway.call import Call, Done, Head, cleaned_id
from services.gateway.clients import key_of
from services.gateway.generations import Generations
from services.gateway.http_body import BodyTooLarge, BodyTooSlow, ClientLeft, discard_body, read_body, while_connected
from services.gateway.http_reply import HttpReply
from services.gateway.json_fields import parsed
from services.gateway.openai_ask import Form, chat_ask, completion_ask, form_of
from services.gateway.openai_logprobs import Json, LogprobShapes
from services.gateway.openai_reply import STREAM_END, Choice, Shapes, error_body, event
from services.gateway.validation import Limits
from services.runtime.edge import opaque

DISCARD_TIMES = 4
"""Of a body that is too large, this many times the limit is still taken in while the refusal is on its way."""
DISCARD_SECONDS = 2.0
REFUSE_SECONDS = 2.0


class Answering:
    """The ASGI application of one route: chat or completions."""

    def __init__(self, generations: Generations, *, is_chat: bool, max_body_bytes: int, body_seconds: float) -> None:
        self._generations = generations
        self._is_chat = is_chat
        self._limit = max_body_bytes
        self._seconds = body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = _call_of(scope, time.monotonic(), is_chat=self._is_chat)
        reply = HttpReply(send)
        try:
            body = await read_body(scope, receive, self._limit, self._seconds)
            await while_connected(receive, self._answer(call, body, reply))
        except ClientLeft:
            return
        except BodyTooSlow:
            reply.add_headers([(b"connection", b"close")])
            error = InvalidRequest(f"the body must be here within {self._seconds:g} s")
            await reply.announce(408, error_body(error), [])
            await reply.end()
        except BodyTooLarge:
            error = InvalidRequest(f"the body may have at most {self._limit} bytes")
            await reply.announce(413, error_body(error), [])
            await discard_body(receive, self._limit * DISCARD_TIMES, DISCARD_SECONDS)
            await reply.end()

    async def _answer(self, call: Call, body: bytes, reply: HttpReply) -> None:
        try:
            async with self._generations.taken_up(call) as live:
                reply.add_headers(_head_headers(live.head, call))
                logprobs = LogprobShapes(self._generations.model)
                shapes = Shapes(live.head, int(time.time()), logprobs, is_chat=self._is_chat)
                caller = HttpCaller(body, reply, shapes, self._generations.limits, is_chat=self._is_chat)
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
    """The client's side of one request."""

    def __init__(self, body: bytes, reply: HttpReply, shapes: Shapes, limits: Limits, *, is_chat: bool) -> None:
        self._body = body
        self._is_chat = is_chat
        self._limits = limits
        self._reply = reply
        self._shapes = shapes
        self._form = Form()
        self._with_logprobs = False
        self._choices: dict[int, Choice] = {}
        """What is collected; of a stream only which answers have begun."""

    def ask(self) -> Ask:
        body = parsed(self._body)
        self._body = b""
        self._form = form_of(body)
        ask = chat_ask(body, self._limits) if self._is_chat else completion_ask(body)
        self._with_logprobs = ask.logprobs is not None
        return ask

    async def send(self, delta: Delta) -> None:
        if not self._form.is_stream:
            self._choices.setdefault(delta.index, Choice()).add(delta)
            return
        chunks = self._chunks(delta)
        if delta.reason is not None:
            chunks.append(self._shapes.ending(delta.index, delta.reason))
        if chunks:
            await self._push(chunks)

    async def finish(self, delta: Delta, done: Done) -> None:
        if not self._form.is_stream:
            await self.send(delta)
            body = self._shapes.whole(self._choices, done, with_logprobs=self._with_logprobs)
            await self._reply.whole(200, body, [])
            return
        ending = self._shapes.ending(delta.index, done.reason)
        closing = self._shapes.closing(ending, done, with_usage=self._form.with_usage)
        await self._push(self._chunks(delta) + closing, is_last=True)

    def _chunks(self, delta: Delta) -> list[Json]:
        """Chunks for what has come; those of an answer begin with its opening."""
        chunks = self._shapes.text(delta)
        if delta.index not in self._choices:
            self._choices[delta.index] = Choice()
            chunks = self._shapes.opening(delta.index) + chunks
        return chunks

    async def _push(self, chunks: list[Json], *, is_last: bool = False) -> None:
        """The first chunks begin the response."""
        if not self._reply.has_begun:
            await self._reply.begin_events()
        raw = b"".join(map(event, chunks))
        await self._reply.push(raw + STREAM_END if is_last else raw, more=not is_last)


def _call_of(scope: Scope, received_at: float, *, is_chat: bool) -> Call:
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    return Call(
        received_at=received_at,
        operation="chat" if is_chat else "text_completion",
        traceparent=headers.get(b"traceparent", ""),
        client_request_id=cleaned_id(headers.get(b"x-request-id", "")),
        deadline=_deadline(headers.get(b"x-request-timeout", ""), received_at),
        key=key_of(headers.get(b"authorization", "")),
    )


def _deadline(seconds: str, received_at: float) -> float | None:
    """From the header `x-request-timeout`; what is no positive number of seconds sets none."""
    try:
        allowed = float(seconds)
    except ValueError:
        return None
    return received_at + allowed if 0 < allowed < math.inf else None


def _head_headers(head: Head, call: Call) -> list[tuple[bytes, bytes]]:
    headers = [(b"x-request-id", head.request_id.encode()), (b"x-trace-id", head.trace_id.encode())]
    if call.client_request_id:
        headers.append((b"x-client-request-id", call.client_request_id.encode()))
    return headers
