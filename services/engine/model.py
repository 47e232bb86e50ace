"""A Llama-family decoder over paged KV: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

Owns the arithmetic from tokens to logits. Must not know requests, sampling or where the weights came from.
"""

import torch
from torch.nn.functional import embedding

from services.core.model_config import ModelConfig
from services.engine.backend import Angles, Backend, HeadNorms, Norm
from services.engine.batch import Batch
from services.engine.kv_cache import KVCache
from services.engine.rope import Rotary
from services.engine.weights import DecoderWeights, LayerWeights


class LlamaDecoder:
    """Llama, SmolLM2, Qwen2 and Qwen2.5, in the float type of the embedding."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights, backend: Backend) -> None:
        self._config = config
        self._weights = weights
        self._backend = backend
        self._rotary = Rotary(config, weights.embedding.device)

    @property
    def weights(self) -> DecoderWeights:
        return self._weights

    def forward(self, batch: Batch, cache: KVCache) -> torch.Tensor:
        """Hidden states `[rows, hidden]` of all rows, before the last norm; their KV is in the cache afterwards."""
        ops = self._backend
        cache.clear(batch.fresh)
        attention = ops.attention(batch)
        angles = self._rotary.angles(batch.positions)
        hidden = embedding(batch.tokens, self._weights.embedding)
        update = torch.zeros_like(hidden)  # of the layer before, not added yet: adding and normalizing are one kernel
        for index, weights in enumerate(self._weights.layers):
            kv = cache.layer(index)
            hidden, normed = ops.added(hidden, update, self._norm(weights.attention_norm))
            query, key, value = self._heads(normed, weights, angles)
            attention.store(key, value, kv)
            attended = attention.attend(query, kv).flatten(1)
            projected = ops.linear(attended, weights.attention_out, weights.attention_out_bias)
            hidden, normed = ops.added(hidden, projected, self._norm(weights.mlp_norm))
            update = ops.linear(ops.gated(ops.linear(normed, weights.gate_up)), weights.down)
        return hidden + update

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[rows, hidden]` to `[rows, vocab]`; give it only the rows that need them."""
        normed = self._backend.normalized(hidden, self._norm(self._weights.norm))
        return self._backend.linear(normed, self._weights.head)

    def _heads(
        self, normed: torch.Tensor, weights: LayerWeights, angles: Angles
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query `[rows, heads, head_dim]`, key and value `[rows, kv_heads, head_dim]`; q and k ready to attend."""
        config = self._config
        fused = self._backend.linear(normed, weights.qkv, weights.qkv_bias).view(len(normed), -1, config.head_dim)
        query, key, value = torch.split(fused, [config.heads, config.kv_heads, config.kv_heads], dim=1)
        query, key = self._backend.rotated(query, key, angles, self._head_norms(weights))
        return query, key, value

    def _head_norms(self, weights: LayerWeights) -> HeadNorms | None:
        if weights.query_norm is None or weights.key_norm is None:
            return None
        return HeadNorms(self._norm(weights.query_norm), self._norm(weights.key_norm))

    def _norm(self, weight: torch.Tensor) -> Norm:
        return Norm(weight, self._config.norm_eps)
