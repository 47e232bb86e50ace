"""The benchmark's side of the conversation with one contender's process.

Owns the process, its log and its end: it ends with its standard input, so also when the benchmark is killed.
"""

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil

from peers.channel import Job
from peers.trace import Trace

BENCHMARKS = Path(__file__).parent.parent
END_SECONDS = 20.0
TAIL_BYTES = 2000


class ContenderFailed(Exception):
    """A contender that was to run cannot."""


@dataclass(frozen=True, slots=True)
class ContenderSpec:
    """How a contender is started."""

    name: str
    module: str
    """Run with `-m`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """For its `load`."""
    python: Path = Path(sys.executable)
    workloads: frozenset[str] = frozenset({"W1", "W2", "W3"})
    is_optional: bool = False
    """Whether the benchmark goes on, and says so, where this one cannot be loaded."""
    same_model_as: str = ""
    """Another contender that is the same engine driven otherwise: its quality is this one's too, and this one runs
    too few of the requests for its times of waiting to mean anything."""


class Child:
    """A contender's process; a context manager."""

    def __init__(self, spec: ContenderSpec, logs: Path, threads: int) -> None:
        self.spec = spec
        self._log = logs / f"{spec.name.replace(' ', '-').replace(',', '')}.log"
        environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS), "OMP_NUM_THREADS": str(threads)}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(spec.python), "-m", spec.module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
            )
        self._watched = psutil.Process(self._process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    @property
    def cpu_seconds(self) -> float:
        """Used so far, by all its threads."""
        times = self._watched.cpu_times()
        return float(times.user + times.system)

    def load(self, seconds: float) -> dict[str, Any]:
        """Its settings. Raises ContenderFailed."""
        settings: dict[str, Any] = self._ask({"do": "load", "options": dict(self.spec.options)}, seconds)["settings"]
        return settings

    def run(self, job: Job, seconds: float) -> Trace:
        """Raises ContenderFailed, also if the answers are not as long as they were to be."""
        trace = Trace.from_json(self._ask({"do": "run", **job.as_json()}, seconds))
        if any(len(stream) != job.workload.answer_tokens for stream in trace.times):
            raise ContenderFailed(f"{self.spec.name} gave answers of another length than was asked for")
        return trace

    def logits(self, texts: list[list[int]], path: Path, seconds: float) -> None:
        self._ask({"do": "logits", "texts": texts, "path": str(path)}, seconds)

    def extras(self, seconds: float) -> dict[str, Any]:
        return self._ask({"do": "extras"}, seconds)

    def _ask(self, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed("ended") from None
        # An answer is one line, written at once: when its first byte is here, the rest is.
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            raise self._failed(f"did not answer within {seconds:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise self._failed("ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise self._failed(answer["error"])
        return answer

    def _failed(self, what: str) -> ContenderFailed:
        tail = self._log.read_bytes()[-TAIL_BYTES:].decode(errors="replace")
        return ContenderFailed(f"{self.spec.name}: {what}\n{tail}")
