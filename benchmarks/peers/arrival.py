"""What running answers feel when a long prompt arrives: the reason for which prefill and decode are split.

Some streams run; the long prompt is sent once all of them are under way, and the gaps of the streams between its
sending and its first token are looked at. Undisturbed, the gaps of as many tokens without it are.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise

from peers.openai_client import OpenAIClient
from peers.streams import Stream

STREAMS = 4
STREAM_PROMPT = 64
LONG_PROMPT = 1500
UNDER_WAY = 8
"""Pieces of text after which a stream runs steadily."""
UNDISTURBED = 96
"""Pieces a stream is watched for without the long prompt."""
LONGEST_ANSWER = 1024
"""More than a stream gives while the long prompt is computed; the client leaves before."""
LONG_ANSWER = 2


async def undisturbed(client: OpenAIClient, prompts: Sequence[Sequence[int]]) -> list[float]:
    """Gaps of the streams by themselves, from when all are under way."""
    running = _Running(client, prompts, lambda pieces: pieces < UNDER_WAY + UNDISTURBED)
    streams = await running.streams()
    begin = max(stream.arrivals[UNDER_WAY - 1] for stream in streams)
    end = min(stream.arrivals[-1] for stream in streams)
    return [late - early for stream in streams for early, late in pairwise(stream.arrivals) if begin <= early < end]


async def disturbed(
    client: OpenAIClient, prompts: Sequence[Sequence[int]], long_prompt: Sequence[int]
) -> tuple[list[float], float]:
    """Gaps of the streams while the long prompt is computed, and its time to the first token."""
    is_over = asyncio.Event()
    running = _Running(client, prompts, lambda _: not is_over.is_set())
    await running.under_way()
    try:
        long = await client.complete(long_prompt, LONG_ANSWER)
    finally:
        is_over.set()
    streams = await running.streams()
    begin, end = long.asked, long.arrivals[0]
    return [gap for stream in streams for gap in stream.gaps_between(begin, end)], long.ttft


class _Running:
    """Streams that go on until they are told to end."""

    def __init__(self, client: OpenAIClient, prompts: Sequence[Sequence[int]], goes_on: Callable[[int], bool]) -> None:
        self._goes_on = goes_on
        self._slow = len(prompts)
        self._are_under_way = asyncio.Event()
        self._tasks = [
            asyncio.create_task(client.complete(prompt, LONGEST_ANSWER, self._after_piece)) for prompt in prompts
        ]

    async def under_way(self) -> None:
        """Returns when all are; raises what a stream raised."""
        waiting = asyncio.create_task(self._are_under_way.wait())
        await asyncio.wait({waiting, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            await asyncio.gather(*self._tasks)

    async def streams(self) -> list[Stream]:
        return await asyncio.gather(*self._tasks)

    def _after_piece(self, pieces: int) -> bool:
        if pieces == UNDER_WAY:
            self._slow -= 1
            if not self._slow:
                self._are_under_way.set()
        return self._goes_on(pieces)
