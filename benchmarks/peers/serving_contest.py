"""One run of the benchmark of serving: every server takes turns, with our engine alone among them.

Owns the order. All servers are up; those without a turn have nothing to do.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from peers.arrival import LONG_PROMPT, STREAM_PROMPT, STREAMS, disturbed, undisturbed
from peers.channel import Job
from peers.child import Child, ContenderSpec
from peers.field import Model, llama_files
from peers.openai_client import OpenAIClient
from peers.rounds import rounds
from peers.servers import Server, llama_server, split, unsplit
from peers.serving_report import ENGINE, Served
from peers.streams import served_measures
from peers.texts import text_prompts
from peers.trace import Measures, measures
from peers.workloads import Workload

LOAD_SECONDS = 900.0
RUN_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """What is asked for."""

    workloads: Sequence[Workload]
    repetitions: int
    threads: int
    forms: Sequence[str]
    """Of the model's file, for llama.cpp's server."""
    cache: Path
    directory: Path
    """For logs."""
    say: Callable[[str], None]


class ServingContest:
    """Holds the servers of one run."""

    def __init__(self, model: Model, plan: ServingPlan) -> None:
        self._model = model
        self._plan = plan
        self._tokenizer = model.prepared.tokenizer()
        self._clients: dict[str, OpenAIClient] = {}
        self._servers: dict[str, Server] = {}
        self._settings: dict[str, Any] = {}

    async def served(self, engine: ContenderSpec) -> Served:
        """Runs it all. Raises ContenderFailed, CommandError or ServerRefused."""
        async with AsyncExitStack() as stack:
            child = stack.enter_context(Child(engine, self._plan.directory, self._plan.threads))
            self._settings[ENGINE] = await asyncio.to_thread(child.load, LOAD_SECONDS)
            await self._start(stack)
            runs = await self._turns(child)
            calm: dict[str, list[float]] = defaultdict(list)
            busy: dict[str, list[float]] = defaultdict(list)
            ttft: dict[str, list[float]] = defaultdict(list)
            for repetition in range(self._plan.repetitions):
                for name, client in self._clients.items():
                    self._plan.say(f"{name}: a long prompt arrives, {repetition + 1}")
                    (long,) = text_prompts(self._tokenizer, 1, LONG_PROMPT, Random(f"long {name} {repetition}"))
                    with self._servers[name].turn():
                        calm[name] += await undisturbed(client, self._prompts(f"calm {repetition}"))
                        gaps, waited = await disturbed(client, self._prompts(f"busy {repetition}"), long)
                    busy[name] += gaps
                    ttft[name].append(waited)
        return Served(runs, calm, busy, ttft, {**self._settings, "run": self._about()})

    async def _start(self, stack: AsyncExitStack) -> None:
        plan, model = self._plan, self._model.prepared.directory
        files = llama_files(self._model, plan.cache)
        starts = [split(model, plan.directory), unsplit(model, plan.directory, plan.threads)]
        starts += [llama_server(form, files[form], plan.directory, plan.threads) for form in plan.forms]
        for start in starts:
            server: Server = await stack.enter_async_context(start)
            plan.say(f"{server.name}: ready")
            self._settings[server.name] = dict(server.settings)
            client = await stack.enter_async_context(OpenAIClient(server.address, server.extra))
            self._clients[server.name], self._servers[server.name] = client, server
            # The first requests of a server may find things that are made on demand.
            await client.all_at_once(self._prompts("warm-up"), 4)

    async def _turns(self, engine: Child) -> dict[str, dict[str, list[Measures]]]:
        runs: dict[str, dict[str, list[Measures]]] = defaultdict(lambda: defaultdict(list))
        for turn in rounds([ENGINE, *self._clients], self._plan.workloads, self._plan.repetitions):
            workload = turn.workload
            draw = Random(f"{workload.name} {turn.repetition}")
            prompts = text_prompts(self._tokenizer, workload.requests, workload.prompt_tokens, draw)
            if turn.contender == ENGINE:
                trace = await asyncio.to_thread(engine.run, Job(workload, prompts), RUN_SECONDS)
                found = measures(workload.name, trace)
            else:
                with self._servers[turn.contender].turn():
                    streams = await self._clients[turn.contender].all_at_once(prompts, workload.answer_tokens)
                found = served_measures(workload.name, streams)
            rate = found["tokens_per_second"]
            self._plan.say(f"{workload.name} {turn.repetition + 1}, {turn.contender}: {rate:.1f} tokens/s")
            runs[turn.contender][workload.name].append(found)
        return runs

    def _prompts(self, seed: str) -> list[list[int]]:
        return text_prompts(self._tokenizer, STREAMS, STREAM_PROMPT, Random(seed))

    def _about(self) -> dict[str, Any]:
        return {
            "model": self._model.gguf.name,
            "repetitions": self._plan.repetitions,
            "threads": self._plan.threads,
            "long_prompt": LONG_PROMPT,
            "running_streams": STREAMS,
        }
