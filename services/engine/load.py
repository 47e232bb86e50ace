"""A prepared model into a running engine, of the kind that suits the model and the machine.

    compiled   CPU: one compiled call per step, weights and KV in the form that serves
    torch      CUDA, and on a CPU the readable float32 reference

Owns the choice. An engine's code is imported only if it is chosen: a worker with the compiled one never loads torch.
"""

import logging
from dataclasses import dataclass
from importlib import import_module

from services.core.engine_settings import EngineSettings
from services.core.model_config import KVFormat, ModelConfig
from services.engine.interface import StepRunner
from services.engine.jit import compiling_alone
from services.engine.sampling.sample import compile_all
from services.modelfiles.errors import ModelError
from services.modelfiles.prepared import PreparedModel

log = logging.getLogger(__name__)

COMPILED, TORCH = "services.engine.compiled.load", "services.engine.torch_load"
"""Each says with `refusal` why it cannot compute a model, and makes its runner with `load_runner`."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Everything a worker needs of this package."""

    config: ModelConfig
    runner: StepRunner
    format: KVFormat
    fingerprint: bytes
    """Identifies the model; with `format`, decides with whom blocks may be exchanged."""


def load_engine(prepared: PreparedModel, settings: EngineSettings) -> Engine:
    """Read the weights, allocate the cache, compile. Raises `ModelError` if the weights are not those of the
    configuration, or if the chosen kind cannot compute the model."""
    config = prepared.config
    kv_format = KVFormat(settings.kv_dtype, settings.block_size, config.layers, config.kv_heads, config.head_dim)
    loader = import_module(_chosen(config, settings))
    # Of the workers that start side by side one compiles, and the others find it done.
    with compiling_alone():
        compile_all()
        runner: StepRunner = loader.load_runner(prepared, kv_format, settings)
    return Engine(config, runner, kv_format, bytes.fromhex(prepared.digest))


def _chosen(config: ModelConfig, settings: EngineSettings) -> str:
    if settings.kind == "torch" or (settings.kind == "auto" and settings.device != "cpu"):
        return TORCH
    reason: str | None = import_module(COMPILED).refusal(config, settings)
    if reason is None:
        return COMPILED
    if settings.kind == "compiled":
        raise ModelError(reason)
    log.warning("%s; the torch engine takes it", reason)
    return TORCH
