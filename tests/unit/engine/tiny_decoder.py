"""Tiny random decoders: ours, and transformers' on the same weights."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from services.core.ids import BlockId, RequestId, RequestKey
from services.core.model_config import KVFormat, ModelConfig
from services.core.plan import Chunk, Draw
from services.core.request import Sampling
from services.engine.batch import Batch
from services.engine.kv_cache import KVCache
from services.engine.model import LlamaDecoder
from services.engine.torch_backend import TorchBackend
from services.engine.weights import DecoderWeights
from services.modelfiles.fields import Fields
from services.modelfiles.hf_config import config_from_hf

CPU = torch.device("cpu")
BLOCK_SIZE = 4

SMALL = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "attn_implementation": "eager",
}


@dataclass(frozen=True)
class Pair:
    """One model twice."""

    config: ModelConfig
    decoder: LlamaDecoder
    reference: PreTrainedModel
    arrays: dict[str, np.ndarray]

    def cache(self, num_blocks: int) -> KVCache:
        return KVCache(kv_format(self.config), num_blocks, CPU)

    def expected(self, tokens: list[int]) -> torch.Tensor:
        """transformers' logits of a whole prompt, `[tokens, vocab]`."""
        with torch.inference_mode():
            logits: torch.Tensor = self.reference(torch.tensor([tokens])).logits[0]
        return logits

    def logits(self, chunks: list[Chunk], cache: KVCache) -> torch.Tensor:
        """Our logits of every row of one step."""
        with torch.inference_mode():
            batch = Batch.of(chunks, cache.format.block_size, cache.device)
            return self.decoder.logits(self.decoder.forward(batch, cache))


def make_pair(architecture: str = "llama", rope: dict[str, Any] | None = None, **changes: Any) -> Pair:
    """`rope` and `changes` are settings in transformers' spelling, on top of `SMALL`."""
    parameters = {"rope_theta": 10000.0, "rope_type": "default"} | (rope or {})
    own = {"head_dim": 16} if architecture == "qwen3" else {}
    theirs = AutoConfig.for_model(architecture, **(SMALL | own | changes), rope_parameters=parameters)
    torch.manual_seed(7)
    reference = AutoModelForCausalLM.from_config(theirs).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            # Far from their initial values: a bias of 0 or a norm of 1 would hide that it is not applied.
            parameter.add_(torch.randn_like(parameter) * 0.15)
    arrays = {name: tensor.numpy() for name, tensor in reference.state_dict().items()}
    if theirs.tie_word_embeddings:
        del arrays["lm_head.weight"]
    ours = config_from_hf(Fields(theirs.to_dict(), "config.json"))
    decoder = LlamaDecoder(ours, DecoderWeights.assemble(ours, arrays, CPU), TorchBackend())
    return Pair(ours, decoder, reference, arrays)


def kv_format(config: ModelConfig, block_size: int = BLOCK_SIZE) -> KVFormat:
    return KVFormat("float32", block_size, config.layers, config.kv_heads, config.head_dim)


def chunk(tokens: list[int], start: int, blocks: list[int], name: str = "r", draw: Draw | None = None) -> Chunk:
    table = tuple(BlockId(block) for block in blocks)
    return Chunk(RequestKey(RequestId(name)), tuple(tokens), start, table, draw)


def greedy(position: int) -> Draw:
    return Draw(Sampling(temperature=0.0), position)
