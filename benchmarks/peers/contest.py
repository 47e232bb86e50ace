"""One run of the benchmark: everybody starts, is judged, takes turns.

Owns the order; whoever does not have a turn waits in a read.
"""

import platform
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.channel import Job
from peers.child import Child, ContenderFailed, ContenderSpec
from peers.divergence import mean_divergence, texts_as_ids
from peers.field import MACHINE, REFERENCE, Model
from peers.limits import Machine
from peers.report import OURS, Findings
from peers.rounds import rounds
from peers.trace import Measures, measures
from peers.workloads import W2, Workload

LOAD_SECONDS = 900.0
RUN_SECONDS = 900.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked for."""

    workloads: Sequence[Workload]
    repetitions: int
    threads: int
    directory: Path
    """For logs and logits."""
    say: Say
    """Gets a line about everything that takes long."""


class Contest:
    """Holds the children of one run."""

    def __init__(self, model: Model, plan: Plan) -> None:
        self._model = model
        self._plan = plan
        self._children: dict[str, Child] = {}
        self._settings: dict[str, Any] = {}
        self._missing: dict[str, str] = {}
        self._idle_share = 0.0

    def findings(self, specs: Sequence[ContenderSpec], missing: Mapping[str, str]) -> Findings:
        """Runs it all. Raises ContenderFailed."""
        with ExitStack() as stack:
            for spec in specs:
                self._load(stack.enter_context(Child(spec, self._plan.directory, self._plan.threads)))
            kl = self._quality()
            runs, samples = self._turns()
            self._plan.say(f"{OURS}: profiling")
            ours = self._children[OURS].extras(RUN_SECONDS)
        return Findings(
            config=self._model.prepared.config,
            runs=runs,
            machine=samples,
            kl=kl,
            settings={**self._settings, "run": self._about()},
            ours=ours,
            weight_bytes=self._settings[OURS]["weight_bytes"],
            missing={**missing, **self._missing},
        )

    def _load(self, child: Child) -> None:
        name = child.spec.name
        self._plan.say(f"{name}: loading")
        try:
            self._settings[name] = child.load(LOAD_SECONDS)
        except ContenderFailed as error:
            if not child.spec.is_optional:
                raise
            self._missing[name] = str(error).splitlines()[0]
            self._plan.say(f"{self._missing[name]}: going on without")
            return
        self._children[name] = child

    def _quality(self) -> dict[str, float]:
        tokenizer = self._model.prepared.tokenizer()
        texts = texts_as_ids(lambda text: tokenizer.encode(text, allow_special=False))
        files: dict[str, Path] = {}
        for name, child in self._children.items():
            if name != MACHINE and not child.spec.same_model_as:
                self._plan.say(f"{name}: logits of {sum(map(len, texts))} tokens")
                files[name] = self._plan.directory / f"logits-{len(files)}.npy"
                child.logits(texts, files[name], RUN_SECONDS)
        kl = {name: mean_divergence(files[REFERENCE], file) for name, file in files.items()}
        for name, child in self._children.items():
            if child.spec.same_model_as:
                kl[name] = kl[child.spec.same_model_as]
        return kl

    def _turns(self) -> tuple[dict[str, dict[str, list[Measures]]], list[Machine]]:
        runs: dict[str, dict[str, list[Measures]]] = defaultdict(lambda: defaultdict(list))
        samples: list[Machine] = []
        competing = [name for name in self._children if name != MACHINE]
        beside = W2 if W2 in self._plan.workloads else self._plan.workloads[0]
        for turn in rounds(competing, self._plan.workloads, self._plan.repetitions):
            if turn.workload.name not in self._children[turn.contender].spec.workloads:
                continue
            is_beside = turn.contender == OURS and turn.workload == beside
            before = [self._machine()] if is_beside else []
            found = self._run(turn.contender, turn.workload, turn.repetition)
            runs[turn.contender][turn.workload.name].append(found)
            if is_beside:
                samples.append(Machine.median([*before, self._machine()]))
        return runs, samples

    def _machine(self) -> Machine:
        return Machine(**self._children[MACHINE].extras(RUN_SECONDS))

    def _run(self, name: str, workload: Workload, repetition: int) -> Measures:
        child = self._children[name]
        prompts = workload.prompts(self._model.prepared.config.vocab, repetition)
        others = [other for other in self._children.values() if other is not child]
        began, used = time.monotonic(), sum(other.cpu_seconds for other in others)
        found = measures(workload.name, child.run(Job(workload, prompts), RUN_SECONDS))
        idle = (sum(other.cpu_seconds for other in others) - used) / (time.monotonic() - began)
        self._idle_share = max(self._idle_share, idle)
        self._plan.say(f"{workload.name} {repetition + 1}, {name}: {found['tokens_per_second']:.1f} tokens/s")
        if child.spec.same_model_as:
            return {"tokens_per_second": found["tokens_per_second"]}
        return found

    def _about(self) -> dict[str, Any]:
        return {
            "model": self._model.gguf.name,
            "repetitions": self._plan.repetitions,
            "threads": self._plan.threads,
            "workloads": {workload.name: workload.text for workload in self._plan.workloads},
            "processor": platform.processor() or platform.machine(),
            "most_cores_used_by_those_without_a_turn": self._idle_share,
        }
