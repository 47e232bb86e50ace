"""A Llama-family decoder over paged KV: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

Owns the arithmetic from tokens to logits. Must not know requests, sampling or where the weights came from.
"""

import torch
from torch.nn.functional import embedding, linear, rms_norm, silu

from services.core.model_config import ModelConfig
from services.engine.attention import attend, store
from services.engine.batch import Batch
from services.engine.kv_cache import KVCache
from services.engine.rope import Rotary, rotate
from services.engine.weights import DecoderWeights, LayerWeights


class LlamaDecoder:
    """Llama, SmolLM2, Qwen2 and Qwen2.5, in float32."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights) -> None:
        self._config = config
        self._weights = weights
        self._rotary = Rotary(config, weights.embedding.device)

    def forward(self, batch: Batch, cache: KVCache) -> torch.Tensor:
        """Hidden states `[rows, hidden]` of all rows; their KV is in the cache afterwards."""
        cache.clear(batch.blocks[batch.offsets == 0])
        hidden = embedding(batch.tokens, self._weights.embedding)
        angles = self._rotary.angles(batch.positions)
        for index, weights in enumerate(self._weights.layers):
            query, kv = self._query_and_kv(self._norm(hidden, weights.attention_norm), weights, angles)
            store(kv, cache.layer(index), batch)
            attended = attend(query, cache.layer(index), batch)
            hidden = hidden + linear(attended.flatten(1), weights.attention_out)
            hidden = hidden + _swiglu(self._norm(hidden, weights.mlp_norm), weights)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[rows, hidden]` to `[rows, vocab]`; give it only the rows that need them."""
        return linear(self._norm(hidden, self._weights.norm), self._weights.head)

    def _query_and_kv(
        self, normed: torch.Tensor, weights: LayerWeights, angles: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Query `[rows, heads, head_dim]` and KV `[rows, 2, kv_heads, head_dim]`, query and key rotated."""
        config = self._config
        fused = linear(normed, weights.qkv, weights.qkv_bias).view(len(normed), -1, config.head_dim)
        query, key, value = torch.split(fused, [config.heads, config.kv_heads, config.kv_heads], dim=1)
        return rotate(query, angles), torch.stack((rotate(key, angles), value), dim=1)

    def _norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden, weight.shape, weight, self._config.norm_eps)


def _swiglu(normed: torch.Tensor, weights: LayerWeights) -> torch.Tensor:
    gate, up = linear(normed, weights.gate_up).chunk(2, dim=-1)
    return linear(silu(gate) * up, weights.down)
