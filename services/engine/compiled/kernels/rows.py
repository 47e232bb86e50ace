"""What happens to each row by itself between the linear layers: RMSNorm, rotation, and its KV into the cache.

RMSNorm after Zhang and Sennrich 2019 (arXiv:1910.07467); rotary positions in halves of a head, as in `engine.rope`;
norms of query and key heads as in Qwen3.
"""

from typing import NamedTuple

import numpy as np

from services.engine.compiled.kernels.row_tiles import fill, put, square_sum, weigh_row
from services.engine.jit import inner


class Cache(NamedTuple):
    """Where KV lies. A block's bytes are, layer after layer: k `[kv_heads][head_dim][block_size]`, v
    `[kv_heads][block_size][head_dim]`, and for int8 the scales of k and v, float32 `[kv_heads][block_size]` each."""

    address: int
    block_bytes: int
    layer_bytes: int
    width: int
    """Bytes of a number: 4, 2 or 1 stand for float32, float16 and int8."""
    block_size: int
    kv_heads: int
    head_dim: int


class Heads(NamedTuple):
    """What a layer does to the heads of a row before attention."""

    count: int
    bias: np.ndarray
    """`[(heads + 2 kv_heads) · head_dim]`, or empty."""
    query_norm: np.ndarray
    """`[head_dim]`, or empty; so `key_norm`."""
    key_norm: np.ndarray
    eps: float
    query_scale: float


class Angles(NamedTuple):
    """Of a row's position."""

    cos: np.ndarray  # [head_dim / 2]
    sin: np.ndarray


class Place(NamedTuple):
    """Where a row's KV is stored."""

    layer: int
    block: int
    offset: int


@inner
def normalize(source, weight, eps, target):
    """RMSNorm of one row into another."""
    width = source.size
    mean = square_sum(np.int64(source.ctypes.data), width) / np.float32(width)
    factor = np.float32(1) / np.sqrt(mean + np.float32(eps))
    weigh_row(
        np.int64(source.ctypes.data),
        factor,
        np.int64(weight.ctypes.data),
        np.int64(target.ctypes.data),
        np.int64(width),
    )


@inner
def ready_head(row, heads, angles, cache, place, head):
    """All that comes before attention for one row and KV head: bias, norms and rotation of the key and of the queries
    that will read it, in place (queries also scaled), and key and value into the cache."""
    group = heads.count // cache.kv_heads
    for query in range(head * group, (head + 1) * group):
        _turn(row, query, heads, heads.query_norm, angles, np.float32(heads.query_scale))
    key, value = heads.count + head, heads.count + cache.kv_heads + head
    _turn(row, key, heads, heads.key_norm, angles, np.float32(1))
    size = cache.head_dim
    for at in range(value * size, min((value + 1) * size, heads.bias.size)):
        row[at] += heads.bias[at]
    store_head(row[key * size : (key + 1) * size], row[value * size : (value + 1) * size], cache, place, head)


@inner
def _turn(row, number, heads, norm, angles, scale):
    """Bias, norm and rotation of a row's query or key head `number`."""
    half = angles.cos.size
    vector = row[number * 2 * half : (number + 1) * 2 * half]
    if heads.bias.size:
        bias = heads.bias[number * 2 * half : (number + 1) * 2 * half]
        for at in range(2 * half):
            vector[at] += bias[at]
    if norm.size:
        normalize(vector, norm, heads.eps, vector)
    for at in range(half):
        first, second = vector[at], vector[half + at]
        vector[at] = (first * angles.cos[at] - second * angles.sin[at]) * scale
        vector[half + at] = (second * angles.cos[at] + first * angles.sin[at]) * scale


@inner
def clear_block(cache, block):
    """To be done before a block's first position is stored: what is read beyond the last position (and then not
    counted) must be a number, and not what an earlier owner left."""
    fill(cache.address + np.int64(block) * cache.block_bytes, cache.block_bytes // 4, np.float32(0))


@inner
def store_head(key, value, cache, place, head):
    """A row's key and value of one KV head into the cache."""
    base = cache.address + np.int64(place.block) * cache.block_bytes + place.layer * cache.layer_bytes
    part = cache.kv_heads * cache.head_dim * cache.block_size * cache.width
    keys = base + head * cache.head_dim * cache.block_size * cache.width + place.offset * cache.width
    values = base + part + (head * cache.block_size + place.offset) * cache.head_dim * cache.width
    if cache.width == 1:
        scales = base + 2 * part + (head * cache.block_size + place.offset) * 4
        _store_int8(key, keys, cache.block_size, scales)
        _store_int8(value, values, 1, scales + cache.kv_heads * cache.block_size * 4)
    elif cache.width == 2:
        for at in range(cache.head_dim):
            put(2, keys + at * cache.block_size * 2, key[at])
            put(2, values + at * 2, value[at])
    else:
        for at in range(cache.head_dim):
            put(4, keys + at * cache.block_size * 4, key[at])
            put(4, values + at * 4, value[at])


@inner
def _store_int8(vector, target, pitch, scale):
    largest = np.float32(1e-9)
    for at in range(vector.size):
        # Not max(): a NaN has to get through, so that its request fails and no wrong answer is given.
        size = np.abs(vector[at])
        if not size <= largest:
            largest = size
    put(4, scale, largest / np.float32(127))
    factor = np.float32(127) / largest
    for at in range(vector.size):
        put(1, target + at * pitch, vector[at] * factor)
