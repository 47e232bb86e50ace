"""Attention over pages in place, against float64, for every dtype of the cache and shape of heads."""

from dataclasses import dataclass

import numpy as np
import pytest

from services.core.model_config import KVFormat
from services.engine.compiled.kernels.attention import TOKENS, attend_unit, scratch_bytes
from services.engine.compiled.kernels.calls import call
from services.engine.compiled.kernels.rows import Place, clear_block, store_head
from services.engine.compiled.kv_memory import KVMemory
from services.engine.jit import outer

TOLERANCE = {"float32": 2e-6, "float16": 2e-3, "int8": 3e-2}


@outer
def _store(row, cache, layer, block, offset):
    if offset == 0:
        clear_block(cache, block)
    for head in range(cache.kv_heads):
        key = row[head * cache.head_dim : (head + 1) * cache.head_dim]
        value = row[(cache.kv_heads + head) * cache.head_dim : (cache.kv_heads + head + 1) * cache.head_dim]
        store_head(key, value, cache, Place(layer, block, offset), head)


@outer
def _call(address, numbers):
    call(address, numbers)


@dataclass(frozen=True)
class Shape:
    dtype: str
    head_dim: int = 64
    kv_heads: int = 3
    group: int = 3
    block_size: int = 16


SHAPES = [
    Shape("float32"),
    Shape("float16"),
    Shape("int8"),
    Shape("float16", head_dim=128, kv_heads=2, group=4),
    Shape("float16", head_dim=16, kv_heads=1, group=1),
    Shape("float32", head_dim=32, kv_heads=2, group=8, block_size=32),
    Shape("int8", head_dim=64, kv_heads=2, group=2, block_size=48),
]


class Pages:
    """Two layers of a cache whose blocks are full of NaN until they are written, and one request in them."""

    def __init__(self, shape: Shape, length: int, seed: int = 0) -> None:
        self.shape = shape
        self.format = KVFormat(shape.dtype, shape.block_size, 2, shape.kv_heads, shape.head_dim)
        rng = np.random.default_rng(seed)
        count = -(-length // shape.block_size)
        self.memory = KVMemory(self.format, count + 3)
        self.memory._blocks[:] = 0xFF
        self.table = rng.permutation(count + 3)[:count].astype(np.int64)
        self.kv = rng.standard_normal((length, 2, shape.kv_heads, shape.head_dim)).astype(np.float32)
        for position, row in enumerate(self.kv):
            block, offset = divmod(position, shape.block_size)
            _store(row.reshape(-1), self.memory.view, 1, self.table[block], offset)

    def attend(self, queries: np.ndarray, position: int, head: int) -> np.ndarray:
        """`queries` is `[tokens, group, head_dim]`, already scaled; so is the result."""
        shape, cache = self.shape, self.memory.view
        tokens = len(queries)
        outputs = np.full_like(queries, np.nan)
        scratch = np.zeros(scratch_bytes(shape.group, shape.head_dim), np.uint8)
        row_bytes = shape.group * shape.head_dim * 4
        head_bytes = shape.head_dim * shape.block_size * cache.width
        part = shape.kv_heads * head_bytes
        _call(
            attend_unit(self.format.width),
            (
                queries.ctypes.data,
                outputs.ctypes.data,
                row_bytes,
                row_bytes,
                tokens,
                shape.group,
                position,
                self.table.ctypes.data,
                cache.address + cache.layer_bytes + head * head_bytes,
                part,
                2 * part + head * (shape.block_size * 4 - head_bytes),
                shape.kv_heads * shape.block_size * 4,
                cache.block_bytes,
                shape.block_size,
                shape.head_dim,
                scratch.ctypes.data,
            ),
        )
        return outputs

    def expected(self, queries: np.ndarray, position: int, head: int) -> np.ndarray:
        keys, values = (self.kv[:, part, head].astype(np.float64) for part in (0, 1))
        rows = []
        for token, query in enumerate(queries.astype(np.float64)):
            seen = position + token + 1
            scores = query @ keys[:seen].T
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            rows.append(weights @ values[:seen] / weights.sum(axis=-1, keepdims=True))
        return np.stack(rows)


def queries_for(shape: Shape, tokens: int) -> np.ndarray:
    rng = np.random.default_rng(9)
    return (rng.standard_normal((tokens, shape.group, shape.head_dim)) / shape.head_dim**0.5).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("length", "tokens"), [(1, 1), (16, 1), (17, 1), (100, 1), (5, 5), (100, TOKENS), (64, 7)])
def test_attention_is_that_of_float64(shape: Shape, length: int, tokens: int) -> None:
    pages = Pages(shape, length)
    queries = queries_for(shape, tokens)
    for head in range(shape.kv_heads):
        got = pages.attend(queries, length - tokens, head)
        np.testing.assert_allclose(got, pages.expected(queries, length - tokens, head), atol=TOLERANCE[shape.dtype])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_token_gets_the_same_bits_alone_and_among_others(shape: Shape) -> None:
    pages = Pages(shape, 90)
    queries = queries_for(shape, TOKENS)
    together = pages.attend(queries, 90 - TOKENS, 0)
    for token in range(TOKENS):
        alone = pages.attend(queries[token : token + 1].copy(), 90 - TOKENS + token, 0)
        assert np.array_equal(alone[0], together[token])


def test_what_other_requests_left_in_a_block_is_not_read() -> None:
    pages = Pages(Shape("float16"), 20)
    assert np.isfinite(pages.attend(queries_for(pages.shape, 1), 19, 0)).all()


def test_large_scores_do_not_overflow() -> None:
    pages = Pages(Shape("float32"), 40)
    got = pages.attend(queries_for(pages.shape, 1) * 1000, 39, 0)
    np.testing.assert_allclose(got, pages.expected(queries_for(pages.shape, 1) * 1000, 39, 0), atol=1e-5)
