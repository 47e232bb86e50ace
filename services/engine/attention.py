"""Attention over paged KV in plain torch: gather a context's blocks, then scaled dot product attention.

Owns how rows read one layer of the cache. Must not know layers, weights or how rows got their positions.

Grouped-query attention without repeating k and v: the query heads that share a KV head become one dimension of their
own (`group`), over which k and v are broadcast.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention

from services.engine.attention_groups import Run, Singles, runs_of, singles_of
from services.engine.batch import Batch
from services.engine.kv_layer import LayerKV


class TorchAttention:
    """The rows of one step at the cache. Implements `backend.PagedAttention`."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._singles = singles_of(batch)
        self._runs = runs_of(batch)

    def store(self, key: torch.Tensor, value: torch.Tensor, layer: LayerKV) -> None:
        """See `PagedAttention.store`."""
        layer.write(key, value, self._batch.blocks, self._batch.offsets)

    def attend(self, query: torch.Tensor, layer: LayerKV) -> torch.Tensor:
        """See `PagedAttention.attend`."""
        attended = torch.empty_like(query)
        for group in self._singles:
            attended[group.rows] = _attend_singles(query[group.rows], layer, group)
        for run in self._runs:
            attended[run.rows] = _attend_run(query[run.rows], layer, run)
        return attended


def _attend_singles(query: torch.Tensor, layer: LayerKV, group: Singles) -> torch.Tensor:
    rows, heads, head_dim = query.shape
    grouped = query.view(rows, layer.kv_heads, heads // layer.kv_heads, head_dim).to(torch.float32)
    scores = grouped @ layer.keys(group.tables) * head_dim**-0.5 + group.mask  # [rows, kv_heads, group, length]
    attended: torch.Tensor = scores.softmax(dim=-1) @ layer.values(group.tables)
    return attended.reshape(rows, heads, head_dim).to(query.dtype)


def _attend_run(query: torch.Tensor, layer: LayerKV, run: Run) -> torch.Tensor:
    rows, heads, head_dim = query.shape
    group = heads // layer.kv_heads
    # [1, kv_heads, context, head_dim] -> [kv_heads, group, context, head_dim]
    key, value = (
        gathered[0, :, None, : run.context].expand(-1, group, -1, -1)
        for gathered in (layer.keys(run.table).transpose(2, 3).contiguous(), layer.values(run.table))
    )
    attended = scaled_dot_product_attention(
        query.view(rows, layer.kv_heads, group, head_dim).permute(1, 2, 0, 3).to(torch.float32),
        key,
        value,
        attn_mask=run.mask,
        is_causal=run.mask is None,
    )
    return attended.permute(2, 0, 1, 3).reshape(rows, heads, head_dim).to(query.dtype)
