"""The whole check of one model, from files to a report. Owns what is loaded and in which order things are done."""

from dataclasses import dataclass
from pathlib import Path

from services.core.engine_settings import EngineSettings
from services.engine.compiled.runner import CompiledRunner
from services.engine.load import load_engine
from services.engine.quality.compiled_subject import CompiledSubject
from services.engine.quality.pair import Pair, Progress
from services.engine.quality.prompts import encoder, read_prompts, spread, tokenized
from services.engine.quality.report import Json, report
from services.engine.quality.subject import Subject
from services.engine.quality.torch_subject import TorchSubject
from services.engine.runner import ModelRunner
from services.engine.torch_load import TorchSettings, load_torch
from services.modelfiles.errors import ModelError
from services.modelfiles.prepared import PreparedModel


@dataclass(frozen=True, slots=True)
class Question:
    """What to check."""

    model: Path
    """A prepared directory."""
    prompts: Path
    settings: EngineSettings
    """A prompt is cut to what its blocks hold."""
    limit: int = 0
    """Prompts at most; 0 takes all."""


def check(question: Question, progress: Progress) -> Json:
    """The report. Raises `ModelError` or `PromptError`."""
    settings = question.settings
    progress("reading the model", 0, 1)
    prepared = PreparedModel.open(question.model)
    prepared.verify()
    most = min(prepared.config.context, settings.num_blocks * settings.block_size)
    prompts = tokenized(spread(read_prompts(question.prompts), question.limit), encoder(prepared), most)
    progress("loading the engine and its reference", 0, 1)
    served = served_subject(prepared, settings)
    pair = Pair(reference_subject(prepared, settings), served, prepared.config.layers, settings.kv_dtype)
    inspection = pair.inspected(prompts, progress)
    said = {
        "model": prepared.name,
        "engine": "compiled" if isinstance(served, CompiledSubject) else "torch",
        "weights": settings.weights,
        "kv_dtype": settings.kv_dtype,
    }
    return report(said, list(pair.measured(prompts, progress)), inspection)


def served_subject(prepared: PreparedModel, settings: EngineSettings) -> Subject:
    """The engine that a worker with these settings has."""
    runner = load_engine(prepared, settings).runner
    if isinstance(runner, CompiledRunner):
        return CompiledSubject(prepared, runner)
    if isinstance(runner, ModelRunner):
        return TorchSubject(prepared, runner)
    raise ModelError("this kind of engine cannot be measured")


def reference_subject(prepared: PreparedModel, settings: EngineSettings) -> Subject:
    """Torch in float32 with a cache of float32: it has no code in common with the compiled engine."""
    chosen = TorchSettings(settings.num_blocks, settings.threads, settings.block_size)
    return TorchSubject(prepared, load_torch(prepared, chosen).runner)
