"""Launches the attention and KV kernels.

Owns tile sizes. They follow from the model and the dtype alone, never from the batch: a row's result is the same bits
in any company and any chunking that keeps it in the same kernel.
"""

import math
from typing import Any

import torch
import triton

from services.engine.batch import Batch
from services.engine.kv_layer import LayerKV
from services.engine.triton.kernels.attention import decode_combine, decode_split, prefill
from services.engine.triton.kernels.kv_write import kv_write
from services.engine.triton.paging import Paging, Runs, Singles
from services.engine.triton.tiles import PRECISION, padded

SPLIT = 512
"""Positions that one program of decode attention reads. A context of 8 192 keeps 16 programs per KV head busy."""

_DECODE_TILE = 64
_QUERY_ROWS = 64


class TritonAttention:
    """The rows of one step at the cache. Implements `backend.PagedAttention`."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._paging = Paging.of(batch)

    def store(self, key: torch.Tensor, value: torch.Tensor, layer: LayerKV) -> None:
        """See `PagedAttention.store`."""
        key, value = _with_whole_heads(key), _with_whole_heads(value)
        rows, kv_heads, head_dim = key.shape
        kv_write[(rows, kv_heads)](
            key=key,
            value=value,
            blocks=self._batch.blocks,
            offsets=self._batch.offsets,
            key_stride=key.stride(0),
            value_stride=value.stride(0),
            HEAD_DIM=head_dim,
            DIM=padded(head_dim),
            **_pages(layer),
        )

    def attend(self, query: torch.Tensor, layer: LayerKV) -> torch.Tensor:
        """See `PagedAttention.attend`."""
        query = _with_whole_heads(query)
        attended = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        if self._paging.singles is not None:
            self._decode(query, layer, self._paging.singles, attended)
        if self._paging.runs is not None:
            self._prefill(query, layer, self._paging.runs, attended)
        return attended

    def _decode(self, query: torch.Tensor, layer: LayerKV, singles: Singles, attended: torch.Tensor) -> None:
        heads, head_dim = query.shape[1:]
        rows, splits = len(singles.rows), triton.cdiv(singles.longest, SPLIT)
        most, total = query.new_empty((2, rows, heads, splits), dtype=torch.float32)
        acc = query.new_empty((rows, heads, splits, head_dim), dtype=torch.float32)
        decode_split[(rows, layer.kv_heads, splits)](
            chunks=singles.chunks,
            rows=singles.rows,
            contexts=singles.contexts,
            most_out=most,
            total_out=total,
            acc_out=acc,
            splits=splits,
            SPLIT=SPLIT,
            TILE=_DECODE_TILE,
            GROUP_ROWS=padded(heads // layer.kv_heads),
            **self._reading(query, layer),
        )
        decode_combine[(rows, heads)](
            most, total, acc, singles.rows, singles.contexts, attended, splits, heads, head_dim, SPLIT, padded(head_dim)
        )

    def _prefill(self, query: torch.Tensor, layer: LayerKV, runs: Runs, attended: torch.Tensor) -> None:
        group = query.shape[1] // layer.kv_heads
        query_rows = max(_QUERY_ROWS, padded(group))
        tiles = triton.cdiv(runs.longest, query_rows // group)
        prefill[(tiles, len(runs.chunks), layer.kv_heads)](
            chunks=runs.chunks,
            rows=runs.rows,
            starts=runs.starts,
            sizes=runs.sizes,
            out=attended,
            KV_HEADS=layer.kv_heads,
            QUERY_ROWS=query_rows,
            # A float32 tile takes twice the shared memory, of which a small GPU has 99 KiB a program.
            TILE=64 if query.dtype == torch.float16 else 32,
            num_stages=2,
            **self._reading(query, layer),
        )

    def _reading(self, query: torch.Tensor, layer: LayerKV) -> dict[str, Any]:
        """What both kernels take: queries, tables, pages."""
        heads, head_dim = query.shape[1:]
        return {
            "query": query,
            "query_stride": query.stride(0),
            "tables": self._paging.tables,
            "table_stride": self._paging.tables.stride(0),
            # The kernels' exponentials are powers of two, which the hardware has.
            "factor": head_dim**-0.5 * math.log2(math.e),
            "GROUP": heads // layer.kv_heads,
            "HEAD_DIM": head_dim,
            "DIM": padded(head_dim),
            "PRECISION": PRECISION,
        } | _pages(layer)


def _pages(layer: LayerKV) -> dict[str, Any]:
    return {
        "k": layer.k,
        "v": layer.v,
        "k_scale": layer.k_scale,
        "v_scale": layer.v_scale,
        "page_stride": layer.k.stride(0),
        "scale_stride": 0 if layer.k_scale is None else layer.k_scale.stride(0),
        "BLOCK_SIZE": layer.block_size,
        "SCALED": layer.k_scale is not None,
    }


def _with_whole_heads(vectors: torch.Tensor) -> torch.Tensor:
    """`[rows, heads, head_dim]` whose rows are runs of values; rows themselves may lie apart, as parts of a fused
    projection do."""
    whole = vectors.stride()[1:] == (vectors.shape[2], 1)
    return vectors if whole else vectors.contiguous()
