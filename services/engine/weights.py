"""Named arrays into the decoder's tensors.

Owns the list of tensors a decoder consists of and their fusing (q, k, v into one matrix; gate and up into another).
Every array is taken exactly once: one that is missing, left over or of another shape is an error naming it, so that
no weight is ever silently uninitialized. Must not know files.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from services.core.model_config import ModelConfig
from services.engine.matrix import Matrix
from services.modelfiles.errors import ModelError

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. Matrices are `[out, in]`."""

    attention_norm: torch.Tensor
    qkv: Matrix
    """`[(heads + 2 × kv_heads) × head_dim, hidden]`: all of q, then k, then v."""
    qkv_bias: torch.Tensor | None
    query_norm: torch.Tensor | None  # [head_dim]
    key_norm: torch.Tensor | None  # [head_dim]
    attention_out: Matrix
    attention_out_bias: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: Matrix
    """`[2 × intermediate, hidden]`: gate, then up."""
    down: Matrix


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights of a decoder, on one device; see `weight_forms` for other forms than float32."""

    embedding: torch.Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: Matrix
    """`[vocab, hidden]`; the embedding itself where they are tied."""

    @staticmethod
    def assemble(config: ModelConfig, arrays: Arrays, device: torch.device) -> "DecoderWeights":
        """Take every array under its Hugging Face name. Raises `ModelError` naming the tensor at fault."""
        source = _Source(arrays, device)
        table = (config.vocab, config.hidden)
        embedding = source.take(table, "model.embed_tokens.weight")
        weights = DecoderWeights(
            embedding=embedding,
            layers=tuple(_layer(source, config, f"model.layers.{index}") for index in range(config.layers)),
            norm=source.take((config.hidden,), "model.norm.weight"),
            head=embedding if config.tied_embeddings else source.take(table, "lm_head.weight"),
        )
        source.expect_nothing_left()
        return weights


def _layer(source: "_Source", config: ModelConfig, at: str) -> LayerWeights:
    hidden, inner = config.hidden, config.intermediate
    q_width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return LayerWeights(
        attention_norm=source.take((hidden,), f"{at}.input_layernorm.weight"),
        qkv=torch.cat(
            (
                source.take((q_width, hidden), f"{at}.self_attn.q_proj.weight"),
                source.take((kv_width, hidden), f"{at}.self_attn.k_proj.weight"),
                source.take((kv_width, hidden), f"{at}.self_attn.v_proj.weight"),
            )
        ),
        qkv_bias=_qkv_bias(source, q_width, kv_width, at) if config.attention_bias else None,
        query_norm=source.take((config.head_dim,), f"{at}.self_attn.q_norm.weight") if config.qk_norm else None,
        key_norm=source.take((config.head_dim,), f"{at}.self_attn.k_norm.weight") if config.qk_norm else None,
        attention_out=source.take((hidden, q_width), f"{at}.self_attn.o_proj.weight"),
        attention_out_bias=source.take((hidden,), f"{at}.self_attn.o_proj.bias") if config.output_bias else None,
        mlp_norm=source.take((hidden,), f"{at}.post_attention_layernorm.weight"),
        gate_up=torch.cat(
            (
                source.take((inner, hidden), f"{at}.mlp.gate_proj.weight"),
                source.take((inner, hidden), f"{at}.mlp.up_proj.weight"),
            )
        ),
        down=source.take((hidden, inner), f"{at}.mlp.down_proj.weight"),
    )


def _qkv_bias(source: "_Source", q_width: int, kv_width: int, at: str) -> torch.Tensor:
    return torch.cat(
        (
            source.take((q_width,), f"{at}.self_attn.q_proj.bias"),
            source.take((kv_width,), f"{at}.self_attn.k_proj.bias"),
            source.take((kv_width,), f"{at}.self_attn.v_proj.bias"),
        )
    )


class _Source:
    """Arrays not taken yet."""

    def __init__(self, arrays: Arrays, device: torch.device) -> None:
        self._arrays = arrays
        self._left = set(arrays)
        self._device = device

    def take(self, shape: tuple[int, ...], name: str) -> torch.Tensor:
        if name not in self._left:
            raise ModelError(f"weights: tensor {name} is missing")
        array = self._arrays[name]
        if array.shape != shape:
            raise ModelError(f"weights: tensor {name} has shape {array.shape}, expected {shape}")
        self._left.remove(name)
        # Wrapped where it can be, so that workers share the pages of a mapped file; copied where torch cannot write.
        wrappable = np.require(array, dtype=np.float32, requirements=("C", "A", "W"))
        return torch.from_numpy(wrappable).to(self._device)

    def expect_nothing_left(self) -> None:
        if self._left:
            name = min(self._left)
            more = f" (and {len(self._left) - 1} more)" if len(self._left) > 1 else ""
            raise ModelError(f"weights: tensor {name} belongs to no part of the model{more}")
