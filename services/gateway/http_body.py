"""Reading a request's body and watching its client, on bare ASGI. Knows no API."""

import asyncio
from collections.abc import Coroutine

from starlette.types import Receive, Scope


class ClientLeft(Exception):
    """The client closed the connection: nobody reads what would be answered."""


class BodyTooSlow(Exception):
    """The body was not here in time."""


class BodyTooLarge(Exception):
    """The body is over the limit; it was not read."""


async def read_body(scope: Scope, receive: Receive, limit: int, seconds: float) -> bytes:
    """The whole body. Raises BodyTooLarge as soon as that is known, BodyTooSlow after `seconds`, ClientLeft."""
    if _declared_length(scope) > limit:
        raise BodyTooLarge
    try:
        async with asyncio.timeout(seconds):
            return await _whole(receive, limit)
    except TimeoutError:
        raise BodyTooSlow from None


async def _whole(receive: Receive, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise BodyTooLarge
        if not message.get("more_body", False):
            return b"".join(parts)


async def discard_body(receive: Receive, limit: int, seconds: float) -> None:
    """Reads on for a little while, so that a client that is still sending gets to see the answer."""
    size, more = 0, True
    try:
        async with asyncio.timeout(seconds):
            while more and size < limit:
                message = await receive()
                size += len(message.get("body", b""))
                more = message.get("more_body", False)
    except TimeoutError:
        return


async def while_connected(receive: Receive, work: Coroutine[None, None, None]) -> None:
    """Does `work`, once the body was read; cancels it and raises ClientLeft when the client closes the connection."""
    working = asyncio.create_task(work, name="http-answer")
    watching = asyncio.create_task(_until_left(receive), name="http-watch")
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
    finally:
        has_left = not working.done()
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)
    if has_left:
        raise ClientLeft
    working.result()


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


def _declared_length(scope: Scope) -> int:
    declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    return int(declared) if declared.isdigit() else 0
