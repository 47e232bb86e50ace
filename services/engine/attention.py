"""Attention over paged KV in plain torch: gather a context's blocks, then scaled dot product attention.

Owns how rows read one layer of the cache. Must not know layers, weights or how rows got their positions.

Grouped-query attention without repeating k and v: the query heads that share a KV head become one dimension of their
own (`group`), over which k and v are broadcast.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention

from services.engine.batch import Batch, Run, Singles


def store(kv: torch.Tensor, layer: torch.Tensor, batch: Batch) -> None:
    """Write the rows' KV `[rows, 2, kv_heads, head_dim]` where the batch says, into one layer of the cache."""
    layer[batch.blocks, :, batch.offsets] = kv.to(layer.dtype)


def attend(query: torch.Tensor, layer: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Each row attends to its request's positions up to its own, all of them stored already.

    `query` is `[rows, heads, head_dim]` and so is the result; `layer` is `[num_blocks, 2, block_size, kv_heads,
    head_dim]`.
    """
    attended = torch.empty_like(query)
    for group in batch.singles:
        attended[group.rows] = _attend_singles(query[group.rows], layer, group)
    for run in batch.runs:
        attended[run.rows] = _attend_run(query[run.rows], layer, run)
    return attended


def _attend_singles(query: torch.Tensor, layer: torch.Tensor, group: Singles) -> torch.Tensor:
    rows, heads, head_dim = query.shape
    kv_heads = layer.shape[3]
    key, value = (_gather(layer, part, group.tables) for part in (0, 1))  # [rows, length, kv_heads, head_dim]
    attended = scaled_dot_product_attention(
        query.view(rows, kv_heads, heads // kv_heads, head_dim),
        key.transpose(1, 2),
        value.transpose(1, 2),
        attn_mask=group.mask,
    )
    return attended.reshape(rows, heads, head_dim)


def _attend_run(query: torch.Tensor, layer: torch.Tensor, run: Run) -> torch.Tensor:
    rows, heads, head_dim = query.shape
    kv_heads = layer.shape[3]
    group = heads // kv_heads
    # [1, length, kv_heads, head_dim] -> [kv_heads, group, context, head_dim]
    key, value = (
        _gather(layer, part, run.table[None])[0, : run.context].transpose(0, 1)[:, None].expand(-1, group, -1, -1)
        for part in (0, 1)
    )
    attended = scaled_dot_product_attention(
        query.view(rows, kv_heads, group, head_dim).permute(1, 2, 0, 3),
        key,
        value,
        attn_mask=run.mask,
        is_causal=run.mask is None,
    )
    return attended.permute(2, 0, 1, 3).reshape(rows, heads, head_dim)


def _gather(layer: torch.Tensor, part: int, tables: torch.Tensor) -> torch.Tensor:
    """k (part 0) or v (part 1) of the tables `[n, blocks]`, as `[n, blocks × block_size, kv_heads, head_dim]`."""
    # index_select copies whole blocks; indexing with a tensor is twenty times slower on this strided view.
    gathered = layer[:, part].index_select(0, tables.flatten())
    return gathered.view(tables.shape[0], -1, *layer.shape[3:]).to(torch.float32)
