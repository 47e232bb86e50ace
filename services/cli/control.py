"""How `diptych scale` reaches the process of `diptych up`: JSON lines on loopback, guarded by the cluster's token.

The record that only the owner may read tells address and token, as it does for the other commands. A Unix socket
would need no token, but its path is limited to about 100 bytes, and a cache directory may be deeper than that.
What is under way goes on when the command that asked for it has left.
"""

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from services.cli.errors import CommandError
from services.cli.layout import LOOPBACK

HELLO_SECONDS = 5.0
MOST_LINE_BYTES = 4096
REPLY_BYTES = 1 << 20

Report = Callable[[str, str], None]
Scale = Callable[[Mapping[str, int], Report], Awaitable[None]]


@asynccontextmanager
async def controlled(token: str, scale: Scale) -> AsyncIterator[str]:
    """The address at which `scale` can be asked for. What is under way at the end is cancelled."""
    tasks: set[asyncio.Task[None]] = set()

    def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_answer(reader, writer, token, scale), name="control")
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(met, LOOPBACK, 0, limit=MOST_LINE_BYTES)
    try:
        yield f"{LOOPBACK}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def asked(address: str, token: str, wish: Mapping[str, int], report: Report) -> None:
    """Asks for the wish and returns when it is carried out. Raises CommandError with what the supervisor says."""
    host, _, port = address.rpartition(":")
    try:
        reader, writer = await asyncio.open_connection(host, int(port), limit=REPLY_BYTES)
    except (OSError, ValueError):
        raise CommandError("the cluster cannot be reached; see whether `diptych up` still runs") from None
    try:
        writer.write(_line({"token": token, "wish": dict(wish)}))
        while line := await reader.readline():
            said = json.loads(line)
            if "error" in said:
                raise CommandError(said["error"])
            if "done" in said:
                return
            report(said["name"], said["state"])
    except (OSError, ValueError):
        pass
    finally:
        writer.close()
    raise CommandError("the cluster has stopped")


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str, scale: Scale) -> None:
    try:
        wish = await _wish(reader, token)
        await scale(wish, lambda name, state: writer.write(_line({"name": name, "state": state})))
        writer.write(_line({"done": True}))
    except CommandError as error:
        writer.write(_line({"error": str(error)}))
    finally:
        writer.close()


async def _wish(reader: asyncio.StreamReader, token: str) -> dict[str, int]:
    try:
        async with asyncio.timeout(HELLO_SECONDS):
            said = json.loads(await reader.readline())
        shown, wish = said["token"], said["wish"]
        known = hmac.compare_digest(str(shown).encode(), token.encode())
        is_wish = all(isinstance(size, int) for size in wish.values())
    except (OSError, ValueError, TypeError, KeyError, AttributeError, TimeoutError):
        raise CommandError("this is no request for another size") from None
    if not known:
        raise CommandError("the token is not this cluster's")
    if not is_wish:
        raise CommandError("a size is a whole number")
    return dict(wish)


def _line(said: dict[str, Any]) -> bytes:
    return json.dumps(said).encode() + b"\n"
