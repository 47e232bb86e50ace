"""Sends a trace to a cluster's public API as clients do, and compares what each of them saw with what it must see."""

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc.aio

from services.cli.cluster import LocalCluster
from services.core.errors import DiptychError
from services.pb import inference_pb2, inference_pb2_grpc
from services.runtime import dial
from services.runtime.edge import rebuilt
from tests.faults.expected import Expected
from tests.faults.trace import Asked

AT_ONCE = 16
HANG_SECONDS = 60.0
"""An answer takes some seconds at most; a client that has waited for so long waits for nothing."""

_REASONS = {inference_pb2.FINISH_REASON_STOP: "stop", inference_pb2.FINISH_REASON_LENGTH: "length"}


@dataclass(frozen=True, slots=True)
class Seen:
    """What one client saw of its answer, to its end."""

    ids: tuple[int, ...]
    text: str
    end: str
    """`stop`, `length`, `left`, or the name of an error."""
    seconds: float
    longest_silence: float
    """Seconds between two messages, or before the first."""
    counted: int = 0
    """Tokens of the answer as its last message counts them."""


@dataclass(slots=True)
class Traffic:
    """One run of a trace. `ended` counts the clients that are done; wait for it with `until`."""

    asked: Sequence[Asked]
    seen: dict[int, Seen] = field(default_factory=dict)
    """By place in the trace."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, address: str, at_once: int = AT_ONCE) -> list[Seen]:
        """All that the clients saw, in the order of the trace; `at_once` are in flight."""
        room = asyncio.Semaphore(at_once)
        async with dial.channel(address) as channel, asyncio.TaskGroup() as clients:
            stub = inference_pb2_grpc.InferenceStub(channel)
            for place, asked in enumerate(self.asked):
                await room.acquire()
                client = clients.create_task(self._client(stub, place, asked))
                client.add_done_callback(lambda _: room.release())
        return self.in_order()

    def in_order(self) -> list[Seen]:
        """What all clients saw, once all are done."""
        return [self.seen[place] for place in range(len(self.asked))]

    async def until(self, ended: int) -> None:
        """Returns once so many clients are done."""
        while len(self.seen) < ended:
            self._changed.clear()
            await self._changed.wait()

    async def _client(self, stub: inference_pb2_grpc.InferenceStub, place: int, asked: Asked) -> None:
        self.seen[place] = await see(stub, asked)
        self._changed.set()


@asynccontextmanager
async def traffic_beside(
    cluster: LocalCluster, asked: Sequence[Asked], at_once: int = AT_ONCE
) -> AsyncIterator[Traffic]:
    """Requests that run while the block does; it is left when all clients are done."""
    traffic = Traffic(asked)
    async with asyncio.TaskGroup() as group:
        group.create_task(traffic.run(cluster.gateway.address, at_once))
        yield traffic


async def see(stub: inference_pb2_grpc.InferenceStub, asked: Asked, patience: float = HANG_SECONDS) -> Seen:
    """Asks, and leaves if that is what the client does; waits for `patience` seconds at most."""
    call = stub.Generate(request_of(asked), timeout=patience)
    ids: list[int] = []
    pieces: list[str] = []
    begun = heard = time.monotonic()
    silence, counted = 0.0, 0
    try:
        end = "left" if asked.leaves_after == 0 and await call.initial_metadata() is not None else ""
        while not end and (message := await call.read()) is not grpc.aio.EOF:
            now = time.monotonic()
            silence, heard = max(silence, now - heard), now
            ids.extend(message.token_ids)
            pieces.append(message.text)
            if message.HasField("done"):
                end, counted = _REASONS[message.done.finish_reason], message.done.usage.completion_tokens
            elif asked.leaves_after is not None and len(ids) >= asked.leaves_after:
                end = "left"
        if not end:
            end = (await _error_of(call)).reason
        if end == "left":
            await asyncio.sleep(asked.lingers)
    except grpc.aio.AioRpcError as error:
        end = rebuilt(error).reason
    finally:
        call.cancel()
    now = time.monotonic()
    return Seen(tuple(ids), "".join(pieces), end, now - begun, max(silence, now - heard), counted)


def request_of(asked: Asked) -> inference_pb2.GenerateRequest:
    sampling = asked.sampling
    request = inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=asked.prompt))
    request.sampling.temperature = sampling.temperature
    request.sampling.seed = sampling.seed
    request.sampling.top_k = sampling.top_k
    request.sampling.repetition_penalty = sampling.repetition_penalty
    request.stopping.max_tokens = asked.max_tokens
    request.stopping.min_tokens = asked.min_tokens
    request.stopping.stop.extend([asked.stop] if asked.stop else [])
    request.stopping.stop_token_ids.extend(sorted(asked.stop_ids))
    request.stopping.ignore_eos = asked.ignores_eos
    return request


def faults_in(
    asked: Sequence[Asked], seen: Sequence[Seen], expected: Sequence[Expected], errors: Collection[str] = ()
) -> list[str]:
    """What is wrong, a line each: a wrong token or text, an end that is not the right one, an error not in `errors`.

    Whoever left or was refused has seen a beginning of the right answer.
    """
    lines = []
    for place, (one, got, right) in enumerate(zip(asked, seen, expected, strict=True)):
        if wrong := _wrong(got, right, errors):
            lines.append(f"request {place} ({len(one.prompt)} tokens, {one.max_tokens} asked for): {wrong}")
    return lines


def _wrong(got: Seen, right: Expected, errors: Collection[str]) -> str:
    at = next((at for at, (ours, its) in enumerate(zip(got.ids, right.ids, strict=False)) if ours != its), None)
    if at is not None or len(got.ids) > len(right.ids):
        return f"a wrong token at index {len(right.ids) if at is None else at}"
    if not right.text.startswith(got.text):
        return "a wrong text"
    if got.end == "left":
        return ""
    if got.end not in ("stop", "length"):
        return "" if got.end in errors else f"{got.end} after {got.seconds:.1f} s and {len(got.ids)} tokens"
    if (got.ids, got.text, got.end, got.counted) != (right.ids, right.text, right.reason, len(right.ids)):
        return f"ended by {got.end} after {len(got.ids)} tokens, not by {right.reason} after {len(right.ids)}"
    return ""


async def _error_of(
    call: "grpc.aio.UnaryStreamCall[inference_pb2.GenerateRequest, inference_pb2.GenerateResponse]",
) -> DiptychError:
    """Why the stream ended without its last message."""
    return rebuilt(
        grpc.aio.AioRpcError(
            await call.code(), await call.initial_metadata(), await call.trailing_metadata(), await call.details()
        )
    )
