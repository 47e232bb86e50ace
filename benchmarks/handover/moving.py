"""One run of the benchmark of bytes: near, far, copies and plain streams take turns, shape by shape.

Owns the order: each round begins with another one, so that a slow moment of a shared machine hits all.
"""

import socket
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from handover.shapes import Shape
from handover.ways import Ways, ways
from handover.yardsticks import Copies, Streams, far_end

Measured = Mapping[str, Sequence[float]]
"""Seconds in which all bytes of a shape were moved, by what moved them; `copies` moved them twice."""

WARM_UP = 2
"""Rounds that are not counted: memory is touched for the first time in them."""


async def measured(shape: Shape, rounds: int, logs: Path) -> Measured:
    """Raises TransferFailed."""
    found: dict[str, list[float]] = defaultdict(list)
    copies = Copies(shape.bytes)
    async with far_end(shape.bytes, logs) as streams, ways(shape, f"127.0.0.1:{_free_port()}", logs) as both:
        turns = _turns(both, copies, streams)
        for number in range(WARM_UP + rounds):
            first = number % len(turns)
            for turn in turns[first:] + turns[:first]:
                for name, seconds in (await turn()).items():
                    if number >= WARM_UP:
                        found[name].append(seconds)
        await both.check()
    return found


def _turns(both: Ways, copies: Copies, streams: Streams) -> list[Callable[[], Awaitable[Mapping[str, float]]]]:
    async def copied() -> Mapping[str, float]:
        return {"copies": copies.seconds()}

    async def streamed() -> Mapping[str, float]:
        return {"tcp": await streams.tcp_seconds()}

    async def bare() -> Mapping[str, float]:
        return {"grpc_bare": await streams.grpc_seconds()}

    return [copied, partial(both.move, "near"), partial(both.move, "far"), streamed, bare]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
