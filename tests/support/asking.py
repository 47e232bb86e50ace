"""Asks a gateway over its public API, and audits every process."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import grpc.aio

from services.cli.cluster import LocalCluster
from services.pb import inference_pb2, inference_pb2_grpc, operations_pb2, operations_pb2_grpc
from services.runtime import dial

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


async def audit(cluster: LocalCluster) -> list[str]:
    """Everything any process holds for a request, and every span that is open."""
    metadata = dial.call_metadata(cluster.token)
    held: list[str] = []
    for name in cluster.processes:
        async with dial.channel(cluster.announcement(name).address) as channel:
            operations = operations_pb2_grpc.OperationsStub(channel)
            report = await operations.Audit(operations_pb2.AuditRequest(), metadata=metadata, timeout=5)
        held += [
            f"{report.name}: {holding.kind} {holding.request_id} {holding.state} x{holding.count}"
            for holding in report.holdings
            if holding.request_id or holding.kind == "span"
        ]
    return held


async def until_calm(cluster: LocalCluster, seconds: float = CALM_SECONDS) -> None:
    """Returns as soon as nothing is held; fails with what is held if that takes longer."""
    held = ["not asked yet"]
    try:
        async with asyncio.timeout(seconds):
            while held := await audit(cluster):
                # There is no event for what a foreign process lets go of.
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"still held after {seconds} s: {held}") from None


async def used_blocks(cluster: LocalCluster) -> dict[str, int]:
    """Blocks in use, by process; cached ones do not count."""
    metadata = dial.call_metadata(cluster.token)
    used = {}
    for name in cluster.processes:
        async with dial.channel(cluster.announcement(name).address) as channel:
            operations = operations_pb2_grpc.OperationsStub(channel)
            status = await operations.Status(operations_pb2.StatusRequest(), metadata=metadata, timeout=5)
        used[name] = status.load.blocks_used
    return used


def status_code(error: grpc.aio.AioRpcError) -> str:
    return error.code().name
