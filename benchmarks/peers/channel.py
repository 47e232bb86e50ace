"""The contender's side of the conversation with the benchmark: one JSON object a line, in and out.

Owns the words. Between two lines the process waits in a read and takes no time from the others. Only the standard
library, for every contender imports it.

    {"do": "load", "options": {...}}                                -> {"settings": {...}}
    {"do": "run", "workload": {...}, "prompts": [[id, ...], ...]}   -> the trace
    {"do": "logits", "texts": [[id, ...], ...], "path": "..."}      -> {}, the logits are in the file
    {"do": "extras"}                                                -> what only this contender can tell
"""

import json
import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, TextIO

from peers.trace import Trace
from peers.workloads import Workload

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Job:
    """A run that is asked for."""

    workload: Workload
    prompts: list[list[int]]

    def as_json(self) -> Json:
        workload = {name: getattr(self.workload, name) for name in Workload.__dataclass_fields__}
        return {"workload": workload, "prompts": self.prompts}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        return cls(Workload(**fields["workload"]), fields["prompts"])


class Contender(Protocol):
    """An engine that is driven through its own interface, as fast as it lets itself be driven."""

    def load(self, options: Json) -> Json:
        """Loads the model, computes once in every form that will be timed, returns the settings worth knowing."""
        ...

    def run(self, job: Job) -> Trace:
        """All prompts at once, greedy, no stop."""
        ...

    def logits(self, texts: list[list[int]], path: Path) -> None:
        """Writes the logits after every token of every text, `[tokens of all texts, vocab]`, float32, as .npy."""
        ...

    def extras(self) -> Json:
        """Asked for once, after all runs."""
        ...


def serve(contender: Contender) -> None:
    """Answers until standard input ends. What libraries print goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        _send(answers, _answer(contender, json.loads(line)))


def _answer(contender: Contender, asked: Json) -> Json:
    # Whatever goes wrong in a peer is told to the benchmark, which ends with it.
    try:
        match asked["do"]:
            case "load":
                return {"settings": contender.load(asked["options"])}
            case "run":
                return contender.run(Job.from_json(asked)).as_json()
            case "logits":
                contender.logits(asked["texts"], Path(asked["path"]))
                return {}
            case _:
                return contender.extras()
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


def _send(answers: TextIO, answer: Json) -> None:
    answers.write(json.dumps(answer) + "\n")
