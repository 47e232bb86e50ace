"""Tiny models under the check: made, loaded beside their reference, and damaged on purpose."""

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from services.core.engine_settings import EngineSettings
from services.engine.compiled.kernels.forms import panel_bytes
from services.engine.quality.check import reference_subject, served_subject
from services.engine.quality.pair import Pair
from services.engine.quality.prompts import Prompt
from services.modelfiles.prepare import prepare
from services.modelfiles.prepared import PreparedModel
from tests.support.tiny_gguf import write_tiny_gguf
from tests.support.tiny_model import write_tiny_hf_model

LAYERS = 6
Bytes = npt.NDArray[np.uint8]


def prompt(seed: int, length: int = 40) -> Prompt:
    tokens = np.random.default_rng(seed).integers(3, 259, length)
    return Prompt("random", f"prompt {seed}", tuple(tokens.tolist()))


PROMPTS = [prompt(seed) for seed in range(3)]


def tiny(directory: Path, **settings: object) -> PreparedModel:
    source = write_tiny_hf_model(directory / "source", layers=LAYERS, **settings)  # type: ignore[arg-type]
    return PreparedModel.open(prepare(source, directory / "cache"))


def tiny_quantized(directory: Path, kind: str) -> PreparedModel:
    source = write_tiny_hf_model(directory / "source", layers=LAYERS)
    path = write_tiny_gguf(source, directory / "model.gguf", quantization=gguf.GGMLQuantizationType[kind])
    return PreparedModel.open(prepare(path, directory / "cache"))


def pair(prepared: PreparedModel, **choices: object) -> Pair:
    settings = EngineSettings(**{"num_blocks": 16, **choices})  # type: ignore[arg-type]
    served = served_subject(prepared, settings)
    return Pair(reference_subject(prepared, settings), served, prepared.config.layers, settings.kv_dtype)


def quiet(doing: str, done: int, of: int) -> None:
    pass


def damaged_places(found: Pair) -> list[str]:
    return [each.place for each in found.inspected(PROMPTS, quiet).damage]


def plant(prepared: PreparedModel, name: str, change: Callable[[Bytes, Callable[[str], Bytes]], None]) -> None:
    """Changes a matrix in the packed file: `change` gets its panels and, by name, those of any other matrix."""
    (path,) = (prepared.directory / "packed").glob("*.bin")
    content = np.memmap(path, np.uint8, mode="r+")
    length = int.from_bytes(content[-8:].tobytes(), "little")
    index = json.loads(content[-8 - length : -8].tobytes())
    entries = {entry["name"]: entry for entry in index["matrices"]}

    def panels(of: str) -> Bytes:
        entry = entries[of]
        size = panel_bytes(entry["form"], entry["inputs"])
        return content[entry["offset"] :][: entry["panels"] * size].reshape(entry["panels"], size)

    change(panels(name), panels)
    content.flush()
