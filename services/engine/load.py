"""A prepared model into a running engine.

Owns what is built and in which order. Must not know where models are kept or how blocks are shared out.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from services.core.model_config import KVFormat, ModelConfig
from services.engine.heap import keep_large_buffers
from services.engine.kv_cache import KVCache
from services.engine.model import LlamaDecoder
from services.engine.runner import ModelRunner
from services.engine.weights import DecoderWeights
from services.modelfiles.prepared import PreparedModel


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What an operator chooses; what the model dictates is in its `ModelConfig`."""

    num_blocks: int
    """Blocks in the KV cache; `KVFormat.block_bytes` each."""
    threads: int = 1
    """Compute threads. PyTorch keeps one number per process, so this is the process's."""
    block_size: int = 16
    dtype: Literal["float32"] = "float32"
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Engine:
    """Everything a worker needs of this package."""

    config: ModelConfig
    decoder: LlamaDecoder
    cache: KVCache
    runner: ModelRunner
    format: KVFormat
    fingerprint: bytes
    """Identifies the model; with `format`, decides with whom blocks may be exchanged."""


def load_engine(prepared: PreparedModel, settings: EngineSettings) -> Engine:
    """Read the weights and allocate the cache. Raises `ModelError` if the weights are not those of the configuration.

    To be called before the thread that will compute does anything in PyTorch: a thread takes the number of compute
    threads over when it first computes.
    """
    torch.set_num_threads(settings.threads)
    keep_large_buffers()
    device = torch.device(settings.device)
    config = prepared.config
    kv_format = KVFormat(settings.dtype, settings.block_size, config.layers, config.kv_heads, config.head_dim)
    decoder = LlamaDecoder(config, DecoderWeights.assemble(config, prepared.open_weights(), device))
    cache = KVCache(kv_format, settings.num_blocks, device)
    runner = ModelRunner(decoder, cache)
    return Engine(config, decoder, cache, runner, kv_format, bytes.fromhex(prepared.digest))
