"""What a hand-over adds between the first token and the second, on a real cluster with the real model.

Seen by a client of the gateway, with one message a token. What it adds is the time between the two tokens, less a step
of the same answer that nothing disturbs: the median of the later ones.
"""

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from typing import Literal

from handover.ends import TransferFailed
from services.cli.cluster import LocalCluster
from services.cli.layout import ClusterLayout
from services.core.model_config import KVFormat
from services.modelfiles.prepared import PreparedModel
from services.pb import inference_pb2, inference_pb2_grpc
from services.runtime import dial

ANSWER_TOKENS = 10
SPLIT_CORES = (0, 1)
TRACE_SECONDS = 5.0
BETWEEN = ("decode.queue", "kv.put", "kv.get", "decode.admit")
"""Segments of the ledger."""
WARM_UP_TOKENS = 512
BLOCK_SIZE = 16

Place = Literal["near", "far"]


@dataclass(frozen=True, slots=True)
class Gap:
    """One request, in seconds."""

    ttft: float
    first: float
    """From the first token to the second."""
    step: float
    """Of the decode worker by itself, with this context."""
    prefill: float
    """As the ledger says."""
    waiting: dict[str, float]
    """The ledger's segments between the two tokens."""
    chunks: tuple[int, ...]
    """Bytes of each put, in order."""

    @property
    def added(self) -> float:
        return max(0.0, self.first - self.step)


class Cluster:
    """One prefill and one decode worker, a thread and a core each."""

    def __init__(self, running: LocalCluster, prepared: PreparedModel) -> None:
        self._running = running
        self._vocab = prepared.config.vocab
        self._channel = dial.channel(running.gateway.address)
        self._generate = inference_pb2_grpc.InferenceStub(self._channel).Generate
        self._drawn = Random("prompts")

    async def close(self) -> None:
        await self._channel.close()

    async def gap(self, tokens: int) -> Gap:
        """Of a prompt of so many tokens that nobody has seen. Raises TransferFailed if none is handed over."""
        found = await self._answer(tokens)
        if not found.chunks:
            raise TransferFailed("a request was not split")
        return found

    async def _answer(self, tokens: int) -> Gap:
        prompt = [self._drawn.randrange(self._vocab // 2) for _ in range(tokens)]
        request = inference_pb2.GenerateRequest(
            token_ids=inference_pb2.TokenIds(ids=prompt),
            sampling=inference_pb2.Sampling(temperature=0),
            stopping=inference_pb2.Stopping(max_tokens=ANSWER_TOKENS, ignore_eos=True),
        )
        moments, done = [time.monotonic()], inference_pb2.Done()
        async for message in self._generate(request):
            moments += [time.monotonic()] * len(message.token_ids)
            done = message.done
        ttft, first, *later = [late - early for early, late in pairwise(moments)]
        ledger = {segment.name: segment.seconds for segment in done.ledger}
        return Gap(
            ttft=ttft,
            first=first,
            step=median(later),
            prefill=ledger.get("prefill.compute", 0.0),
            waiting={name: ledger[name] for name in BETWEEN if name in ledger},
            chunks=await self._puts(done.trace_id),
        )

    async def _puts(self, trace_id: str) -> tuple[int, ...]:
        trace = await self._running.collector.trace(trace_id, TRACE_SECONDS)
        return tuple(int(span.attributes["diptych.bytes"]) for span in trace.spans if span.name == "kvstore.put")


@asynccontextmanager
async def cluster(model: Path, logs: Path, place: Place = "near", rate: float = 0.0) -> AsyncIterator[Cluster]:
    """Ready, and warm, with its logs in a directory; with a `rate`, prefill's link to the store carries so many bytes
    per second."""
    attach = {"attach": "true" if place == "near" else "false"}
    fields = {"prefill": dict(attach), "decode": attach | {"event_window": "0"}, "scheduler": {"split": "always"}}
    if rate:
        fields["prefill"] |= {"profile": "test", "faults": f'{{"kv.put": {{"throttle": {rate:.0f}}}}}'}
    layout = ClusterLayout(model=model, threads=1, processors=SPLIT_CORES, fields=fields)
    async with LocalCluster(layout, logs, os.environ) as running:
        found = Cluster(running, PreparedModel.open(model))
        try:
            await found.gap(WARM_UP_TOKENS)
            yield found
        finally:
            await found.close()


def prompt_bytes(model: Path, tokens: int) -> int:
    """That a prompt's blocks have."""
    config = PreparedModel.open(model).config
    block = KVFormat("float16", BLOCK_SIZE, config.layers, config.kv_heads, config.head_dim)
    return tokens // BLOCK_SIZE * block.block_bytes
