"""A prepared model into the torch engine: the reference on a CPU, and what serves on a GPU.

Owns what is built and in which order. Must not know where models are kept or how blocks are shared out.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from services.core.engine_settings import EngineSettings
from services.core.model_config import KVFormat, ModelConfig
from services.engine.devices import backend_for
from services.engine.heap import keep_large_buffers
from services.engine.kv_cache import KVCache
from services.engine.model import LlamaDecoder
from services.engine.runner import ModelRunner
from services.engine.weight_forms import WeightForm, in_form
from services.engine.weights import DecoderWeights
from services.modelfiles.prepared import PreparedModel


@dataclass(frozen=True, slots=True)
class TorchSettings:
    """What an operator chooses; what the model dictates is in its `ModelConfig`."""

    num_blocks: int
    """Blocks in the KV cache; `KVFormat.block_bytes` each."""
    threads: int = 1
    """Compute threads. PyTorch keeps one number per process, so this is the process's."""
    block_size: int = 16
    dtype: Literal["float32", "float16", "int8"] = "float32"
    """Of the KV cache."""
    device: str = "cpu"
    weights: WeightForm = "float32"


@dataclass(frozen=True, slots=True)
class TorchEngine:
    """The engine and its parts, which tests look into."""

    config: ModelConfig
    decoder: LlamaDecoder
    cache: KVCache
    runner: ModelRunner
    format: KVFormat
    fingerprint: bytes
    """Identifies the model; with `format`, decides with whom blocks may be exchanged."""


def load_torch(prepared: PreparedModel, settings: TorchSettings) -> TorchEngine:
    """Read the weights and allocate the cache. Raises `ModelError` if the weights are not those of the configuration.

    To be called before the thread that will compute does anything in PyTorch: a thread takes the number of compute
    threads over when it first computes.
    """
    torch.set_num_threads(settings.threads)
    keep_large_buffers()
    device = torch.device(settings.device)
    config = prepared.config
    kv_format = KVFormat(settings.dtype, settings.block_size, config.layers, config.kv_heads, config.head_dim)
    weights = in_form(DecoderWeights.assemble(config, prepared.open_weights(), device), settings.weights)
    decoder = LlamaDecoder(config, weights, backend_for(device))
    cache = KVCache(kv_format, settings.num_blocks, device)
    runner = ModelRunner(decoder, cache)
    return TorchEngine(config, decoder, cache, runner, kv_format, bytes.fromhex(prepared.digest))


def refusal(config: ModelConfig, settings: EngineSettings) -> str | None:
    """Why this engine cannot compute such a model; None, for it computes all that a prepared directory can hold."""
    return None


def load_runner(prepared: PreparedModel, kv_format: KVFormat, settings: EngineSettings) -> ModelRunner:
    """As `load_torch`, for an operator's choices: what is not float32 or int8 is float32 on a CPU, float16 on a GPU."""
    lossless: WeightForm = "float32" if settings.device == "cpu" else "float16"
    form = settings.weights if settings.weights in ("int8", "float32") else lossless
    chosen = TorchSettings(
        settings.num_blocks, settings.threads, kv_format.block_size, settings.kv_dtype, settings.device, form
    )
    return load_torch(prepared, chosen).runner
