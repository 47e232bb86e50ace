"""A client that sends its body slowly, or never ends it, is not waited for; its connection is closed."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.gateway_world import gateway_world, tiny_prepared

BODY_SECONDS = 0.3


async def test_a_body_that_does_not_come_is_408_and_the_connection_closed(tmp_path: Path) -> None:
    async with gateway_world(tiny_prepared(tmp_path, 128), body_seconds=BODY_SECONDS) as world:
        await world.connected()
        address = urlsplit(world.http)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n"
        writer.write(head + b"{")
        async with asyncio.timeout(BODY_SECONDS + 10):
            answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert answer.startswith(b"HTTP/1.1 408 ")
        await world.nothing_held()
