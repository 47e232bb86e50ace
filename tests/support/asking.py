"""Asks a gateway over its public API, and audits every process."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import grpc.aio

from services.cli.asking import Asking
from services.cli.cluster import LocalCluster
from services.core.audit import Snapshot, held, stranded
from services.pb import inference_pb2, inference_pb2_grpc, operations_pb2, operations_pb2_grpc
from services.runtime import dial

T = TypeVar("T")
Operations = operations_pb2_grpc.OperationsStub

CALM_SECONDS = 2.0
"""Within this, nothing is held for a request that has ended, however it ended."""


@dataclass(frozen=True)
class Told:
    """A complete answer."""

    ids: list[int]
    text: str
    done: inference_pb2.Done


def request_for(prompt: Sequence[int] | str, max_tokens: int, **sampling: float) -> inference_pb2.GenerateRequest:
    """Goes on for exactly `max_tokens`; greedy unless told otherwise."""
    request = inference_pb2.GenerateRequest()
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(prompt)
    request.stopping.max_tokens = max_tokens
    request.stopping.ignore_eos = True
    request.sampling.temperature = sampling.get("temperature", 0.0)
    if "seed" in sampling:
        request.sampling.seed = int(sampling["seed"])
    return request


async def ask(stub: inference_pb2_grpc.InferenceStub, request: inference_pb2.GenerateRequest) -> Told:
    ids: list[int] = []
    pieces: list[str] = []
    async for message in stub.Generate(request, timeout=240):
        ids.extend(message.token_ids)
        pieces.append(message.text)
        if message.HasField("done"):
            return Told(ids, "".join(pieces), message.done)
    raise AssertionError("the stream ended without its last message")


async def ask_all(
    cluster: LocalCluster, requests: Sequence[inference_pb2.GenerateRequest], at_once: int = 8
) -> list[Told]:
    """All answers, in order, with `at_once` in flight."""
    room = asyncio.Semaphore(at_once)
    async with dial.channel(cluster.gateway.address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)

        async def one(request: inference_pb2.GenerateRequest) -> Told:
            async with room:
                return await ask(stub, request)

        return await asyncio.gather(*(one(request) for request in requests))


def living(cluster: LocalCluster) -> list[str]:
    """Names of the processes that can be asked: one that has ended holds nothing."""
    return [name for name, child in cluster.processes.items() if child.is_alive]


async def told_by_all(cluster: LocalCluster, question: Callable[[Operations], Awaitable[T]]) -> dict[str, T]:
    """What each living process answers, by name; without those that end meanwhile."""
    told = {}
    for name in living(cluster):
        async with dial.channel(cluster.announcement(name).address) as channel:
            try:
                told[name] = await question(operations_pb2_grpc.OperationsStub(channel))
            except grpc.aio.AioRpcError:
                if not await cluster.processes[name].ends_within(CALM_SECONDS):
                    raise
    return told


async def look(cluster: LocalCluster) -> list[Snapshot]:
    """What every living process holds; without those that end meanwhile."""
    async with Asking(cluster.token) as asking:
        snapshots = await asking.look(cluster.living())
    return [each for each in snapshots if not each.is_silent or cluster.processes[each.name].is_alive]


async def audit(cluster: LocalCluster) -> list[str]:
    """Everything any process holds that it would not if nobody had asked for anything."""
    return described(await look(cluster))


def described(snapshots: Sequence[Snapshot]) -> list[str]:
    silent = [f"{each.name}: no answer" for each in snapshots if each.is_silent]
    return silent + [
        f"{name}: {thing.kind} {thing.request_id} {thing.state} x{thing.count}" for name, thing in held(snapshots)
    ]


async def until_calm(cluster: LocalCluster, seconds: float = CALM_SECONDS) -> None:
    """Returns as soon as nothing is held; fails with what is held, and what of it is stranded, if that takes longer."""
    first = latest = await look(cluster)
    try:
        async with asyncio.timeout(seconds):
            while described(latest):
                # There is no event for what a foreign process lets go of.
                await asyncio.sleep(0.05)
                latest = await look(cluster)
    except TimeoutError:
        lost = stranded(first, latest, grace=seconds / 2)
        raise AssertionError(f"still held after {seconds} s: {described(latest)}; of these stranded: {lost}") from None


async def used_blocks(cluster: LocalCluster) -> dict[str, int]:
    """Blocks in use, by process; cached ones do not count."""
    metadata = dial.call_metadata(cluster.token)
    said = await told_by_all(
        cluster, lambda operations: operations.Status(operations_pb2.StatusRequest(), metadata=metadata, timeout=5)
    )
    return {name: status.load.blocks_used for name, status in said.items()}


def status_code(error: grpc.aio.AioRpcError) -> str:
    return error.code().name
