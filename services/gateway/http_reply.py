"""One HTTP response on bare ASGI: whole, streamed as events, or an error in the form that is still possible."""

import math

from starlette.types import Send

from services.core.errors import DiptychError
from services.gateway.openai_logprobs import Json
from services.gateway.openai_reply import encoded, error_body, event, status_of

Headers = list[tuple[bytes, bytes]]


class HttpReply:
    """The response to one request. Nothing leaves before the first event, so that an early error has its status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._headers: Headers = []
        self.has_begun = False

    def add_headers(self, headers: Headers) -> None:
        """Headers for whatever this response becomes."""
        self._headers.extend(headers)

    async def begin_events(self) -> None:
        """A stream of server-sent events follows."""
        self.has_begun = True
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers + self._headers})

    async def push(self, raw: bytes, *, more: bool) -> None:
        """Sends part of the stream; waits for a client that is slow to read."""
        await self._send({"type": "http.response.body", "body": raw, "more_body": more})

    async def whole(self, status: int, body: Json, headers: Headers) -> None:
        """The complete response."""
        await self.announce(status, body, headers)
        await self.end()

    async def announce(self, status: int, body: Json, headers: Headers) -> None:
        """All that the client has to read, but the exchange stays open until `end`."""
        self.has_begun = True
        raw = encoded(body)
        framing = [(b"content-type", b"application/json"), (b"content-length", str(len(raw)).encode())]
        headers = framing + headers + self._headers
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": raw, "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})

    async def fail(self, error: DiptychError) -> None:
        """As a status; as an event, which is no normal end, once the stream has begun."""
        if self.has_begun:
            await self.push(event(error_body(error)), more=False)
            return
        # Whole seconds, and never less than was meant.
        headers = [(b"retry-after", str(math.ceil(error.retry_after)).encode())] if error.retry_after else []
        await self.whole(status_of(error), error_body(error), headers)
