"""A client of any OpenAI-compatible server: completions of token ids, streamed.

Owns one pool of connections for a server. Every answer has its full length: greedy, end tokens ignored.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import httpx

from peers.streams import Stream

REQUEST_SECONDS = 600.0


class ServerRefused(Exception):
    """The server answered with an error, or not as it was asked to."""


class OpenAIClient:
    """An async context manager."""

    def __init__(self, address: str, extra: Mapping[str, Any]) -> None:
        """`address` is `host:port`; `extra` are fields of the body that only this server knows."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._http = httpx.AsyncClient(base_url=f"http://{address}", timeout=REQUEST_SECONDS, limits=limits)
        self._extra = extra

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def all_at_once(self, prompts: Sequence[Sequence[int]], answer_tokens: int) -> list[Stream]:
        """One stream per prompt. Raises ServerRefused, also if an answer is shorter than asked for."""
        streams = await asyncio.gather(*(self.complete(prompt, answer_tokens) for prompt in prompts))
        if any(stream.tokens != answer_tokens for stream in streams):
            raise ServerRefused("an answer is shorter than was asked for")
        return streams

    async def complete(
        self, prompt: Sequence[int], answer_tokens: int, goes_on: Callable[[int], bool] = lambda _: True
    ) -> Stream:
        """One stream; the client leaves when `goes_on`, asked after every piece with their number, says no."""
        body = {
            "prompt": list(prompt),
            "max_tokens": answer_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._extra,
        }
        arrivals: list[float] = []
        tokens = 0
        asked = time.monotonic()
        async with self._http.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != httpx.codes.OK:
                await response.aread()
                raise ServerRefused(f"the server answered {response.status_code}")
            async for line in response.aiter_lines():
                text, used = _read(line)
                tokens = used or tokens
                if text:
                    arrivals.append(time.monotonic())
                    if not goes_on(len(arrivals)):
                        break
        return Stream(asked, tuple(arrivals), tokens)


def _read(line: str) -> tuple[str, int]:
    """Text and token count that a line of the event stream brings; either may be nothing."""
    if not line.startswith("data: ") or line == "data: [DONE]":
        return "", 0
    chunk = json.loads(line.removeprefix("data: "))
    choices = chunk.get("choices") or [{}]
    usage = chunk.get("usage") or {}
    return choices[0].get("text") or "", usage.get("completion_tokens", 0)
