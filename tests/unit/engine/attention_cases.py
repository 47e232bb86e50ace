"""One step's attention over a paged cache, and the float64 answer computed from the bytes of its blocks.

The reference reads blocks as `KVFormat` describes them, token by token, and shares no code with the engine.
"""

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch

from services.core.ids import BlockId, RequestId, RequestKey
from services.core.model_config import KVFormat
from services.core.plan import Chunk
from services.engine.backend import Backend
from services.engine.batch import Batch
from services.engine.kv_cache import KVCache

LAYERS, LAYER = 2, 1


@dataclass(frozen=True)
class Case:
    """`chunks` are (positions before the chunk, tokens in it)."""

    chunks: tuple[tuple[int, int], ...]
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    block_size: int = 16
    kv_dtype: str = "float32"
    dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        spans = ",".join(f"{start}+{size}" for start, size in self.chunks)
        return f"{self.heads}/{self.kv_heads}x{self.head_dim} b{self.block_size} {self.kv_dtype} {self.dtype} {spans}"

    @property
    def format(self) -> KVFormat:
        return KVFormat(self.kv_dtype, self.block_size, LAYERS, self.kv_heads, self.head_dim)

    @property
    def rows(self) -> int:
        return sum(size for _, size in self.chunks)


@dataclass(frozen=True)
class Scene:
    """A cache with every context in place, and a step that has not run yet."""

    case: Case
    cache: KVCache
    batch: Batch
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor

    def attended(self, backend: Backend) -> torch.Tensor:
        """The step as the decoder runs it."""
        self.cache.clear(self.batch.fresh)
        attention = backend.attention(self.batch)
        attention.store(self.key, self.value, self.cache.layer(LAYER))
        return attention.attend(self.query, self.cache.layer(LAYER))


def scene(case: Case, device: torch.device, seed: int = 1) -> Scene:
    """Blocks lie in random order; whatever no context owns is not a number."""
    dice = torch.Generator().manual_seed(seed)
    tables = _tables(case, dice)
    cache = KVCache(case.format, sum(map(len, tables)) + 2, device)
    for index in range(LAYERS):
        spoil(cache, index)
    for (start, _), table in zip(case.chunks, tables, strict=True):
        _fill(cache, case, (start, table), dice)
    # Strided, as parts of one fused projection are.
    fused = _random((case.rows, case.heads + 2 * case.kv_heads, case.head_dim), dice).to(device, case.dtype)
    query, key, value = torch.split(fused, [case.heads, case.kv_heads, case.kv_heads], dim=1)
    chunks = [
        Chunk(RequestKey(RequestId(str(at))), (0,) * size, start, tuple(map(BlockId, table)), None)
        for at, ((start, size), table) in enumerate(zip(case.chunks, tables, strict=True))
    ]
    return Scene(case, cache, Batch.of(chunks, case.block_size, device), query, key, value)


def spoil(cache: KVCache, index: int, block: int | slice = slice(None)) -> None:
    """Make one layer of these blocks not a number."""
    layer = cache.layer(index)
    for part in (layer.k, layer.v) if layer.k_scale is None else (layer.k_scale, layer.v_scale):
        assert part is not None
        part[block] = torch.nan


def expected(after: Scene) -> np.ndarray:
    """`[rows, heads, head_dim]` in float64, of a scene whose step has stored its rows."""
    case = after.case
    query = after.query.double().cpu().numpy()
    group = case.heads // case.kv_heads
    out = np.empty(query.shape)
    for chunk, end in zip(after.batch.chunks, accumulate(size for _, size in case.chunks), strict=True):
        keys, values = stored(after.cache, chunk.blocks, LAYER)  # [kv_heads, positions, head_dim]
        for at in range(len(chunk.tokens)):
            row, reach = end - len(chunk.tokens) + at, chunk.start + at + 1
            for head in range(case.heads):
                scores = keys[head // group, :reach] @ query[row, head] / np.sqrt(case.head_dim)
                weights = np.exp(scores - scores.max())
                out[row, head] = weights @ values[head // group, :reach] / weights.sum()
    return out


def stored(cache: KVCache, blocks: tuple[BlockId, ...], layer: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of a table, each `[kv_heads, blocks × block_size, head_dim]` in float64, from its bytes."""
    parts = [_parsed(cache.format, bytes(cache.read_block(block)), layer) for block in blocks]
    keys, values = zip(*parts, strict=True)
    return np.concatenate(keys, axis=1), np.concatenate(values, axis=1)


def _parsed(form: KVFormat, content: bytes, layer: int) -> tuple[np.ndarray, np.ndarray]:
    heads, size, dim = form.kv_heads, form.block_size, form.head_dim
    count, dtype = heads * size * dim, np.dtype(form.dtype)
    at = layer * len(content) // form.layers
    keys = np.frombuffer(content, dtype, count, at).reshape(heads, dim, size).transpose(0, 2, 1).astype(np.float64)
    at += count * dtype.itemsize
    values = np.frombuffer(content, dtype, count, at).reshape(heads, size, dim).astype(np.float64)
    if form.dtype != "int8":
        return keys, values
    scales = np.frombuffer(content, np.float32, 2 * heads * size, at + count).reshape(2, heads, size, 1)
    return keys * scales[0], values * scales[1]


def _tables(case: Case, dice: torch.Generator) -> list[list[int]]:
    counts = [-(-(start + size) // case.block_size) for start, size in case.chunks]
    order = (torch.randperm(sum(counts), generator=dice) + 1).tolist()
    return [order[end - count : end] for count, end in zip(counts, accumulate(counts), strict=True)]


def _fill(cache: KVCache, case: Case, context: tuple[int, list[int]], dice: torch.Generator) -> None:
    start, table = context
    if not start:
        return
    blocks = torch.tensor(table, device=cache.device)
    positions = torch.arange(start, device=cache.device)
    cache.clear(blocks[: -(-start // case.block_size)])
    key, value = (_random((start, case.kv_heads, case.head_dim), dice).to(cache.device) for _ in range(2))
    cache.layer(LAYER).write(key, value, blocks[positions // case.block_size], positions % case.block_size)


def _random(shape: tuple[int, ...], dice: torch.Generator) -> torch.Tensor:
    return 2 * torch.randn(shape, generator=dice)
