"""What happens to each row by itself: normalization, rotation, gating. Sums are float32 whatever the rows are."""

import triton
import triton.language as tl


@triton.jit
def rms_norm(hidden, update, weight, summed, normed, width, eps, BLOCK: tl.constexpr, ADD: tl.constexpr):
    """One row, normalized; with ADD, `update` is added first and the sum kept. Grid: (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    real = at < width
    x = tl.load(hidden + row * width + at, mask=real, other=0)
    if ADD:
        x = x + tl.load(update + row * width + at, mask=real, other=0)
        tl.store(summed + row * width + at, x, mask=real)
    x = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / width + eps)
    y = x * scale * tl.load(weight + at, mask=real, other=0).to(tl.float32)
    tl.store(normed + row * width + at, y.to(normed.dtype.element_ty), mask=real)


@triton.jit
def rotate(
    query, key, query_norm, key_norm, cos, sin, query_stride, key_stride, query_eps, key_eps,
    HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    """One head of one row in place: normalized with NORMED, then rotated by halves. Grid: (rows, heads + kv_heads)."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, BLOCK)
    real = at < HALF
    if head < HEADS:
        vector = query + row * query_stride + head * 2 * HALF
    else:
        vector = key + row * key_stride + (head - HEADS) * 2 * HALF
    first = tl.load(vector + at, mask=real, other=0).to(tl.float32)
    second = tl.load(vector + HALF + at, mask=real, other=0).to(tl.float32)
    if NORMED:
        mean = (tl.sum(first * first, axis=0) + tl.sum(second * second, axis=0)) / (2 * HALF)
        if head < HEADS:
            weight, scale = query_norm, tl.rsqrt(mean + query_eps)
        else:
            weight, scale = key_norm, tl.rsqrt(mean + key_eps)
        first = first * scale * tl.load(weight + at, mask=real, other=0).to(tl.float32)
        second = second * scale * tl.load(weight + HALF + at, mask=real, other=0).to(tl.float32)
    c = tl.load(cos + row * HALF + at, mask=real, other=0)
    s = tl.load(sin + row * HALF + at, mask=real, other=0)
    tl.store(vector + at, (first * c - second * s).to(query.dtype.element_ty), mask=real)
    tl.store(vector + HALF + at, (second * c + first * s).to(query.dtype.element_ty), mask=real)


@triton.jit
def silu_mul(gate_up, out, width, BLOCK: tl.constexpr):
    """BLOCK values of one row: silu(gate) × up. Grid: (rows, width / BLOCK)."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = at < width
    gate = tl.load(gate_up + row * 2 * width + at, mask=real, other=0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + at, mask=real, other=0).to(tl.float32)
    gated = gate / (1 + tl.exp(-gate)) * up
    tl.store(out + row * width + at, gated.to(out.dtype.element_ty), mask=real)
