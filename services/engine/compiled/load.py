"""A prepared model into the compiled engine."""

import math

import numpy as np

from services.core.engine_settings import EngineSettings
from services.core.model_config import KVFormat, ModelConfig
from services.engine.compiled.kernels.attention import attend_unit
from services.engine.compiled.kernels.attention_tiles import PAGE
from services.engine.compiled.kernels.forms import GROUP, PANEL
from services.engine.compiled.kernels.step_data import Model
from services.engine.compiled.kv_memory import KVMemory
from services.engine.compiled.runner import CompiledRunner
from services.engine.compiled.threads import Threads
from services.engine.compiled.weights import DecoderWeights, decoder_weights
from services.engine.rotary_frequencies import inverse_frequencies
from services.modelfiles.prepared import PreparedModel

_MULTIPLES = {"hidden": GROUP, "intermediate": GROUP, "head_dim": PANEL}


def refusal(config: ModelConfig, settings: EngineSettings) -> str | None:
    """Why this engine cannot compute such a model; None if it can."""
    for name, multiple in _MULTIPLES.items():
        if getattr(config, name) % multiple:
            return f"the compiled engine needs a {name} that is a multiple of {multiple}"
    if config.heads * config.head_dim % GROUP:
        return f"the compiled engine needs heads whose dimensions are a multiple of {GROUP} together"
    if settings.block_size % PAGE:
        return f"the compiled engine needs a block size that is a multiple of {PAGE}"
    if settings.device != "cpu":
        return "the compiled engine computes on a CPU only"
    return None


def load_runner(prepared: PreparedModel, kv_format: KVFormat, settings: EngineSettings) -> CompiledRunner:
    """Compiled and warm. Raises `ModelError` if the model's tensors are not those of its configuration."""
    config = prepared.config
    weights = decoder_weights(prepared, settings.weights)
    positions = min(config.context, settings.num_blocks * kv_format.block_size)
    model = _model(config, weights, kv_format, positions)
    threads = Threads(settings.threads, settings.cores)
    runner = CompiledRunner(config, weights, model, KVMemory(kv_format, settings.num_blocks), threads)
    runner.compile()
    return runner


def _model(config: ModelConfig, weights: DecoderWeights, kv_format: KVFormat, positions: int) -> Model:
    frequencies = inverse_frequencies(config)
    angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies
    factor = np.float32(config.rope_scaling.attention_factor)
    return Model(
        layers=weights.layers,
        embedding=weights.embedding,
        head=weights.head,
        attention_norm=weights.attention_norm,
        mlp_norm=weights.mlp_norm,
        norm=weights.norm,
        qkv_bias=weights.qkv_bias,
        out_bias=weights.out_bias,
        query_norm=weights.query_norm,
        key_norm=weights.key_norm,
        cos=np.cos(angles) * factor,
        sin=np.sin(angles) * factor,
        attend=attend_unit(kv_format.width),
        heads=config.heads,
        eps=config.norm_eps,
        query_scale=1 / math.sqrt(config.head_dim),
    )
