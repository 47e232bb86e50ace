"""llama.cpp as a contender, tuned: of several ways to hand over a workload's prompts, the quickest is timed.

Prompts are computed some at a time, then all sequences go on together, one token a call: what its own server does
with requests that arrive at once.
"""

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

import llama_cpp
import numpy as np

from peers.channel import Job, Json, serve
from peers.llama_cpp_context import Context, Row, Shape
from peers.trace import Trace
from peers.workloads import WORKLOADS, Workload

VOCAB_OF_TRIALS = 30_000
ROOM = 16
"""Tokens beyond prompt and answer that a sequence has room for."""
TRIAL_ANSWER = 2
WARM_UP_TOKENS = 8
GAIN = 0.97
"""A way with a later first token is taken only if it saves more than 3 %."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a workload is handed over."""

    prompts_at_once: int
    ubatch: int


WAYS = (Way(1, 128), Way(1, 512), Way(4, 512), Way(16, 512))
"""By how soon the first token comes."""


class LlamaCpp:
    """Options: `file`, `threads`, `workloads` (names of those that will be run)."""

    def load(self, options: Json) -> Json:
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        self._threads = int(options["threads"])
        self._model = llama_cpp.llama_model_load_from_file(os.fsencode(options["file"]), params)
        if not self._model:
            raise RuntimeError("llama.cpp could not open the file")
        self._contexts: dict[Shape, Context] = {}
        self._ways = {name: self._quickest(WORKLOADS[name]) for name in options["workloads"]}
        return {
            "llama_cpp_python": llama_cpp.__version__,
            "system": llama_cpp.llama_print_system_info().decode(),
            "threads": self._threads,
            "flash_attention": True,
            "kv_unified": False,
            "kv": "F16",
            "ways": {
                name: {"prompts_at_once": way.prompts_at_once, "n_ubatch": way.ubatch}
                for name, way in self._ways.items()
            },
        }

    def run(self, job: Job) -> Trace:
        return self._run(job, self._ways[job.workload.name])

    def logits(self, texts: list[list[int]], path: Path) -> None:
        rows = []
        for text in texts:
            context = Context(self._model, Shape(1, len(text) + ROOM, 512), self._threads)
            wanted = context.decode(Row(token, at, 0, True) for at, token in enumerate(text))
            rows += [context.logits(at).copy() for at in wanted]
            context.close()
        np.save(path, np.stack(rows))

    def extras(self) -> Json:
        return {}

    def _quickest(self, workload: Workload) -> Way:
        ways = [way for way in WAYS if way.prompts_at_once <= workload.requests]
        trial = replace(workload, answer_tokens=TRIAL_ANSWER)
        prompts = trial.prompts(VOCAB_OF_TRIALS, repetition=-1)
        job, warm_up = Job(trial, prompts), Job(trial, [prompt[:WARM_UP_TOKENS] for prompt in prompts])
        chosen, least = ways[0], float("inf")
        for way in ways:
            self._run(warm_up, way)
            seconds = self._run(job, way).seconds
            if seconds < least * GAIN:
                chosen, least = way, seconds
        return chosen

    def _run(self, job: Job, way: Way) -> Trace:
        context = self._context(job.workload, way)
        context.clear()
        run = _Run(context, job)
        run.prefill(way.prompts_at_once)
        for _ in range(job.workload.answer_tokens - 1):
            run.step()
        return run.trace()

    def _context(self, workload: Workload, way: Way) -> Context:
        longest = workload.prompt_tokens + WORKLOADS[workload.name].answer_tokens + ROOM
        shape = Shape(workload.requests, longest, way.ubatch)
        if shape not in self._contexts:
            self._contexts[shape] = Context(self._model, shape, self._threads)
        return self._contexts[shape]


class _Run:
    """The sequences of one run and when their tokens came."""

    def __init__(self, context: Context, job: Job) -> None:
        self._context = context
        self._prompts = job.prompts
        self._answers: list[list[int]] = [[] for _ in job.prompts]
        self._times: list[list[float]] = [[] for _ in job.prompts]
        self._began = time.perf_counter()

    def prefill(self, at_once: int) -> None:
        for first in range(0, len(self._prompts), at_once):
            group = range(first, min(first + at_once, len(self._prompts)))
            self._compute(
                [
                    Row(token, at, sequence, at == len(self._prompts[sequence]) - 1)
                    for sequence in group
                    for at, token in enumerate(self._prompts[sequence])
                ],
                group,
            )

    def step(self) -> None:
        rows = [
            Row(answer[-1], len(prompt) + len(answer) - 1, sequence, True)
            for sequence, (prompt, answer) in enumerate(zip(self._prompts, self._answers, strict=True))
        ]
        self._compute(rows, range(len(rows)))

    def trace(self) -> Trace:
        return Trace(len(self._prompts[0]), tuple(map(tuple, self._times)), tuple(map(tuple, self._answers)))

    def _compute(self, rows: list[Row], sequences: range) -> None:
        """Computes rows of which the last of each sequence has logits."""
        for sequence, at in zip(sequences, self._context.decode(rows), strict=True):
            self._answers[sequence].append(self._context.best(at))
        now = time.perf_counter() - self._began
        for sequence in sequences:
            self._times[sequence].append(now)


if __name__ == "__main__":
    serve(LlamaCpp())
