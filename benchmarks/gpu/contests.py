"""Our kernels and torch's on the same operands.

Owns which sizes are measured and what stands on the other side: torch's own kernel for the same thing, given its
operands in the layout it likes best (attention reads dense KV there, ours reads pages).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import linear, scaled_dot_product_attention

from gpu import work
from gpu.work import Shape, Work
from services.core.ids import BlockId, RequestId, RequestKey
from services.core.model_config import KVFormat
from services.core.plan import Chunk
from services.engine.backend import HeadNorms, Norm
from services.engine.batch import Batch
from services.engine.kv_cache import KVCache
from services.engine.matrix import Int8Matrix
from services.engine.torch_backend import TorchBackend
from services.engine.triton.backend import TritonBackend

Call = Callable[[], torch.Tensor]

SHAPES = {
    "8b": Shape(heads=32, kv_heads=8, head_dim=128, hidden=4096, intermediate=14336),
    "smollm2": Shape(heads=9, kv_heads=3, head_dim=64, hidden=576, intermediate=1536),
}
KV_DTYPES = ("float16", "int8")
BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured."""

    decode: tuple[tuple[int, int], ...] = ((1, 8192), (16, 2048), (64, 2048), (128, 1024))
    """(rows, context of each)."""
    prefill: tuple[tuple[int, int], ...] = ((0, 2048), (7680, 512))
    """(positions before the chunk, tokens in it)."""
    rows: tuple[int, ...] = (1, 16, 64, 2048)


@dataclass(frozen=True, slots=True)
class Contest:
    """Both sides return the same values, up to rounding (int8 KV: up to what its scales lose)."""

    name: str
    work: Work
    ours: Call
    theirs: Call
    peer: str


def contests(shape: Shape, sizes: Sizes, device: torch.device) -> Iterator[Contest]:
    """One at a time, since each holds its operands."""
    torch.manual_seed(0)
    for kv_dtype in KV_DTYPES:
        for rows, context in sizes.decode:
            yield _attention(shape, [(context - 1, 1)] * rows, kv_dtype, device)
        for chunk in sizes.prefill:
            yield _attention(shape, [chunk], kv_dtype, device)
        for rows in sizes.rows:
            yield _kv_write(shape, rows, kv_dtype, device)
    for rows in sizes.rows:
        yield _int8_linear(shape, rows, device)
        yield from _rows(shape, rows, device)


def _attention(shape: Shape, spans: list[tuple[int, int]], kv_dtype: str, device: torch.device) -> Contest:
    """Equal chunks: all of one token, or one of several."""
    (before, size), rows = spans[0], len(spans)
    query = _random((rows, shape.heads, size, shape.head_dim), device)
    key, value = (_random((rows, shape.kv_heads, before + size, shape.head_dim), device) for _ in range(2))
    layer = _cache(shape, spans, kv_dtype, device).layer(0)
    everything = _batch([(0, before + size)] * rows, device)
    layer.write(_by_row(key), _by_row(value), everything.blocks, everything.offsets)
    attention = TritonBackend().attention(_batch(spans, device))
    flat = _by_row(query).contiguous()
    if size == 1:
        need = work.decode_attention(shape, [before + 1] * rows, kv_dtype)
        name = f"decode attention, {rows} rows behind {before}, KV {kv_dtype}"
    else:
        need = work.prefill_attention(shape, (before, size), kv_dtype)
        name = f"prefill attention, {size} tokens behind {before}, KV {kv_dtype}"
    theirs = _dense_attention(query, key, value)
    return Contest(name, need, lambda: attention.attend(flat, layer), theirs, "SDPA, dense float16 KV")


def _dense_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Call:
    """Torch's, on `[rows, heads, tokens, head_dim]`; causal where several tokens attend."""
    size, context = query.shape[2], key.shape[2]
    # Aligned to the last position: of all ways to say so, the one for which torch keeps its fast kernels.
    mask = causal_lower_right(size, context) if size > 1 else None
    return lambda: _by_row(scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True))


def _kv_write(shape: Shape, rows: int, kv_dtype: str, device: torch.device) -> Contest:
    batch = _batch([(0, rows)], device)
    key, value = (_random((rows, shape.kv_heads, shape.head_dim), device) for _ in range(2))

    def writing(backend: TritonBackend | TorchBackend) -> Call:
        layer = _cache(shape, [(0, rows)], kv_dtype, device).layer(0)
        attention = backend.attention(batch)

        def write() -> torch.Tensor:
            attention.store(key, value, layer)
            return layer.k

        return write

    name, need = f"KV write, {rows} rows, KV {kv_dtype}", work.kv_write(shape, rows, kv_dtype)
    return Contest(name, need, writing(TritonBackend()), writing(TorchBackend()), "torch, indexed")


def _int8_linear(shape: Shape, rows: int, device: torch.device) -> Contest:
    inputs, outputs = shape.hidden, 2 * shape.intermediate
    x, matrix = _random((rows, inputs), device), Int8Matrix.nearest(_random((outputs, inputs), device))
    floats = matrix.floats().half()
    return Contest(
        f"int8 linear, {rows} rows, {inputs} to {outputs}",
        work.int8_linear(rows, inputs, outputs),
        lambda: TritonBackend().linear(x, matrix),
        lambda: linear(x, floats),
        "linear, float16 weights",
    )


def _rows(shape: Shape, rows: int, device: torch.device) -> Iterator[Contest]:
    ours, theirs, width = TritonBackend(), TorchBackend(), shape.hidden
    hidden, update = _random((rows, width), device), _random((rows, width), device)
    norm = Norm(_random((width,), device), 1e-5)
    yield Contest(
        f"add and normalize, {rows} rows",
        work.per_row(rows, 2 * width, 2 * width),
        lambda: ours.added(hidden, update, norm)[1],
        lambda: theirs.added(hidden, update, norm)[1],
        "torch, two kernels",
    )
    gate_up = _random((rows, 2 * shape.intermediate), device)
    yield Contest(
        f"SiLU and multiply, {rows} rows",
        work.per_row(rows, 2 * shape.intermediate, shape.intermediate),
        lambda: ours.gated(gate_up),
        lambda: theirs.gated(gate_up),
        "torch, two kernels",
    )
    heads = _random((rows, shape.heads + shape.kv_heads, shape.head_dim), device)
    turn = torch.rand((rows, 1, shape.head_dim // 2), device=device) * 6
    angles = turn.cos(), turn.sin()
    narrow = Norm(_random((shape.head_dim,), device), 1e-5)

    def rotated(backend: TritonBackend | TorchBackend) -> Call:
        query, key = torch.split(heads.clone(), [shape.heads, shape.kv_heads], dim=1)
        return lambda: backend.rotated(query, key, angles, HeadNorms(narrow, narrow))[0]

    vectors = (shape.heads + shape.kv_heads) * shape.head_dim
    name = f"normalize and rotate heads, {rows} rows"
    yield Contest(name, work.per_row(rows, vectors, vectors), rotated(ours), rotated(theirs), "torch, many kernels")


def _cache(shape: Shape, spans: list[tuple[int, int]], kv_dtype: str, device: torch.device) -> KVCache:
    """One layer, with blocks for every chunk of `_batch`."""
    blocks = sum(_blocks(start + size) for start, size in spans)
    return KVCache(KVFormat(kv_dtype, BLOCK_SIZE, 1, shape.kv_heads, shape.head_dim), blocks, device)


def _batch(spans: list[tuple[int, int]], device: torch.device) -> Batch:
    """Chunks (positions before, tokens) as a step; each has blocks of its own."""
    chunks, first = [], 0
    for at, (start, size) in enumerate(spans):
        blocks = _blocks(start + size)
        table = tuple(BlockId(block) for block in range(first, first + blocks))
        chunks.append(Chunk(RequestKey(RequestId(str(at))), (0,) * size, start, table, None))
        first += blocks
    return Batch.of(chunks, BLOCK_SIZE, device)


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE)


def _by_row(parts: torch.Tensor) -> torch.Tensor:
    """`[requests, heads, tokens, head_dim]` as `[requests × tokens, heads, head_dim]`."""
    return parts.transpose(1, 2).flatten(0, 1)


def _random(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return torch.randn(shape, device=device).half()
