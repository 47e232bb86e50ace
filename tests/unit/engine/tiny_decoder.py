"""Tiny random decoders: ours, and transformers' on the same weights."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from services.core.ids import BlockId, RequestId, RequestKey
from services.core.model_config import KVFormat, ModelConfig, RopeScaling
from services.core.plan import Chunk, Draw
from services.core.request import Sampling
from services.engine.batch import Batch
from services.engine.kv_cache import KVCache
from services.engine.model import LlamaDecoder
from services.engine.weights import DecoderWeights

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
    reference: LlamaForCausalLM | Qwen2ForCausalLM
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
    classes = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}[architecture]
    parameters = {"rope_theta": 10000.0, "rope_type": "default"} | (rope or {})
    theirs = classes[0](**(SMALL | changes), rope_parameters=parameters)
    torch.manual_seed(7)
    reference = classes[1](theirs).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            # Far from their initial values: a bias of 0 or a norm of 1 would hide that it is not applied.
            parameter.add_(torch.randn_like(parameter) * 0.15)
    arrays = {name: tensor.numpy() for name, tensor in reference.state_dict().items()}
    if theirs.tie_word_embeddings:
        del arrays["lm_head.weight"]
    ours = _our_config(architecture, theirs, parameters)
    decoder = LlamaDecoder(ours, DecoderWeights.assemble(ours, arrays, CPU))
    return Pair(ours, decoder, reference, arrays)


def _our_config(architecture: str, theirs: LlamaConfig | Qwen2Config, rope: dict[str, Any]) -> ModelConfig:
    scaling = RopeScaling(
        kind=rope["rope_type"],
        factor=rope.get("factor", 1.0),
        low_freq_factor=rope.get("low_freq_factor", 1.0),
        high_freq_factor=rope.get("high_freq_factor", 4.0),
        original_context=rope.get("original_max_position_embeddings", 0),
        attention_factor=rope.get("attention_factor", 1.0),
        beta_fast=rope.get("beta_fast", 32.0),
        beta_slow=rope.get("beta_slow", 1.0),
    )
    return ModelConfig(
        architecture=architecture,
        layers=theirs.num_hidden_layers,
        hidden=theirs.hidden_size,
        intermediate=theirs.intermediate_size,
        heads=theirs.num_attention_heads,
        kv_heads=theirs.num_key_value_heads or theirs.num_attention_heads,
        head_dim=getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads,
        vocab=theirs.vocab_size,
        context=theirs.max_position_embeddings,
        norm_eps=theirs.rms_norm_eps,
        rope_theta=rope["rope_theta"],
        rope_scaling=scaling,
        tied_embeddings=theirs.tie_word_embeddings,
        attention_bias=architecture == "qwen2",
    )


def kv_format(config: ModelConfig, block_size: int = BLOCK_SIZE) -> KVFormat:
    return KVFormat("float32", block_size, config.layers, config.kv_heads, config.head_dim)


def chunk(tokens: list[int], start: int, blocks: list[int], name: str = "r", draw: Draw | None = None) -> Chunk:
    table = tuple(BlockId(block) for block in blocks)
    return Chunk(RequestKey(RequestId(name)), tuple(tokens), start, table, draw)


def greedy(position: int) -> Draw:
    return Draw(Sampling(temperature=0.0), position)
