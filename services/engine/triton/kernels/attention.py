"""Attention over paged KV with an online softmax, no scores in memory.

Sources: online softmax, Milakov and Gimelshein 2018 (arXiv:1805.02867); tiling, FlashAttention-2, Dao 2023
(arXiv:2307.08691); pages, Kwon et al. 2023 (arXiv:2309.06180); splitting a long context over programs, Flash-Decoding,
Dao et al. 2023. Query heads that share a KV head are rows of one tile, so that k and v are read once for all of them.

What a row's result is made of, and in which order, follows from its own position alone: tiles of KV begin at multiples
of TILE, splits at multiples of SPLIT, and what a row may not see adds an exact zero.
"""

import triton
import triton.language as tl


@triton.jit
def _pages(table, tokens, inside, BLOCK_SIZE: tl.constexpr):
    """Block of each token, 64 bits wide since an offset into the cache may need them."""
    return tl.load(table + tokens // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)


@triton.jit
def _keys(k, pages, offsets, inside, dtype, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, DIM: tl.constexpr):
    """`[DIM, TILE]`; k is at the head's part of block 0, pages are in elements."""
    dims = tl.arange(0, DIM)
    at = k + pages[None, :] + dims[:, None] * BLOCK_SIZE + offsets[None, :]
    return tl.load(at, mask=(dims < HEAD_DIM)[:, None] & inside[None, :], other=0).to(dtype)


@triton.jit
def _values(v, pages, offsets, inside, HEAD_DIM: tl.constexpr, DIM: tl.constexpr):
    """`[TILE, DIM]` as stored."""
    dims = tl.arange(0, DIM)
    at = v + pages[:, None] + offsets[:, None] * HEAD_DIM + dims[None, :]
    return tl.load(at, mask=inside[:, None] & (dims < HEAD_DIM)[None, :], other=0)


@triton.jit
def _advance(
    q, most, total, acc, tokens, inside, visible, table, head, k, v, k_scale, v_scale, page_stride, scale_stride,
    factor, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, DIM: tl.constexpr, SCALED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Take one tile of KV into the running softmax: the largest score so far (in powers of two), the sum of weights and
    the weighted sum of values, both relative to it."""
    pages = _pages(table, tokens, inside, BLOCK_SIZE)
    offsets = tokens % BLOCK_SIZE
    first = head * HEAD_DIM * BLOCK_SIZE
    keys = _keys(k + first, pages * page_stride, offsets, inside, q.dtype, HEAD_DIM, BLOCK_SIZE, DIM)
    scores = tl.dot(q, keys, input_precision=PRECISION) * factor
    at_scales = pages * scale_stride + head * BLOCK_SIZE + offsets
    if SCALED:
        scores *= tl.load(k_scale + at_scales, mask=inside, other=0)[None, :]
    scores = tl.where(visible, scores, float("-inf"))
    new_most = tl.maximum(most, tl.max(scores, axis=1))
    # A row that has seen nothing yet has no largest score, and -inf minus -inf is not a number.
    pivot = tl.where(new_most == float("-inf"), 0.0, new_most)
    weights = tl.exp2(scores - pivot[:, None])
    shrink = tl.exp2(most - pivot)
    values = _values(v + first, pages * page_stride, offsets, inside, HEAD_DIM, DIM)
    if SCALED:
        # Before the product rather than into the weights: a weight times a small scale would vanish in float16.
        values = values.to(tl.float32) * tl.load(v_scale + at_scales, mask=inside, other=0)[:, None]
    acc = acc * shrink[:, None] + tl.dot(weights.to(q.dtype), values.to(q.dtype), input_precision=PRECISION)
    return new_most, total * shrink + tl.sum(weights, axis=1), acc


@triton.jit
def decode_split(
    query, k, v, k_scale, v_scale, tables, chunks, rows, contexts, most_out, total_out, acc_out,
    query_stride, table_stride, page_stride, scale_stride, splits, factor,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, SPLIT: tl.constexpr, TILE: tl.constexpr,
    GROUP_ROWS: tl.constexpr, DIM: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One row, one KV head, one split of its context: softmax state `[group]` and sum `[group, head_dim]`, not divided.

    Grid: (rows of one token, kv_heads, most splits of any row).
    """
    single, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    context = tl.load(contexts + single)
    first = split * SPLIT
    if first >= context:
        return
    members, dims = tl.arange(0, GROUP_ROWS), tl.arange(0, DIM)
    real = (members < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    heads = head * GROUP + members
    row = tl.load(rows + single).to(tl.int64)
    q = tl.load(query + row * query_stride + heads[:, None] * HEAD_DIM + dims[None, :], mask=real, other=0)
    table = tables + tl.load(chunks + single) * table_stride
    most = tl.full([GROUP_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_ROWS], tl.float32)
    acc = tl.zeros([GROUP_ROWS, DIM], tl.float32)
    for start in range(first, tl.minimum(first + SPLIT, context), TILE):
        tokens = start + tl.arange(0, TILE)
        inside = tokens < context
        most, total, acc = _advance(
            q, most, total, acc, tokens, inside, inside[None, :], table, head, k, v, k_scale, v_scale,
            page_stride, scale_stride, factor, HEAD_DIM, BLOCK_SIZE, DIM, SCALED, PRECISION,
        )  # fmt: skip
    slots = (single * tl.num_programs(1) * GROUP + heads) * splits + split
    tl.store(most_out + slots, most, mask=members < GROUP)
    tl.store(total_out + slots, total, mask=members < GROUP)
    tl.store(acc_out + slots[:, None] * HEAD_DIM + dims[None, :], acc, mask=real)


@triton.jit
def decode_combine(
    most_in, total_in, acc_in, rows, contexts, out, splits, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    SPLIT: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """One row, one head: its splits into one softmax, in their order. Grid: (rows of one token, heads)."""
    single, head = tl.program_id(0), tl.program_id(1)
    dims = tl.arange(0, DIM)
    first = (single * HEADS + head) * splits
    most = tl.load(most_in + first)
    total = tl.load(total_in + first)
    acc = tl.load(acc_in + first * HEAD_DIM + dims, mask=dims < HEAD_DIM, other=0)
    for split in range(1, tl.cdiv(tl.load(contexts + single), SPLIT)):
        slot = first + split
        other = tl.load(most_in + slot)
        new_most = tl.maximum(most, other)
        shrink, weight = tl.exp2(most - new_most), tl.exp2(other - new_most)
        total = total * shrink + tl.load(total_in + slot) * weight
        acc = acc * shrink + tl.load(acc_in + slot * HEAD_DIM + dims, mask=dims < HEAD_DIM, other=0) * weight
        most = new_most
    row = tl.load(rows + single).to(tl.int64)
    tl.store(out + (row * HEADS + head) * HEAD_DIM + dims, (acc / total).to(out.dtype.element_ty), mask=dims < HEAD_DIM)


@triton.jit
def prefill(
    query, k, v, k_scale, v_scale, tables, chunks, rows, starts, sizes, out,
    query_stride, table_stride, page_stride, scale_stride, factor,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    QUERY_ROWS: tl.constexpr, TILE: tl.constexpr, DIM: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A few tokens of one chunk with all query heads of one KV head: QUERY_ROWS rows, token by token, head by head.

    Grid: (most tiles of any chunk, chunks, kv_heads).
    """
    run, head = tl.program_id(1), tl.program_id(2)
    TOKENS: tl.constexpr = QUERY_ROWS // GROUP
    size, start = tl.load(sizes + run), tl.load(starts + run)
    first = tl.program_id(0) * TOKENS
    if first >= size:
        return
    members, dims = tl.arange(0, QUERY_ROWS), tl.arange(0, DIM)
    ours = first + members // GROUP
    real = ((members < TOKENS * GROUP) & (ours < size))[:, None] & (dims < HEAD_DIM)[None, :]
    heads = head * GROUP + members % GROUP
    row = tl.load(rows + run).to(tl.int64) + ours
    q = tl.load(query + row[:, None] * query_stride + heads[:, None] * HEAD_DIM + dims[None, :], mask=real, other=0)
    table = tables + tl.load(chunks + run) * table_stride
    context = start + tl.minimum(first + TOKENS, size)
    most = tl.full([QUERY_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([QUERY_ROWS], tl.float32)
    acc = tl.zeros([QUERY_ROWS, DIM], tl.float32)
    for at in range(0, context, TILE):
        tokens = at + tl.arange(0, TILE)
        inside = tokens < context
        visible = inside[None, :] & (tokens[None, :] <= (start + ours)[:, None])
        most, total, acc = _advance(
            q, most, total, acc, tokens, inside, visible, table, head, k, v, k_scale, v_scale,
            page_stride, scale_stride, factor, HEAD_DIM, BLOCK_SIZE, DIM, SCALED, PRECISION,
        )  # fmt: skip
    at_out = (row[:, None] * KV_HEADS * GROUP + heads[:, None]) * HEAD_DIM + dims[None, :]
    tl.store(out + at_out, (acc / total[:, None]).to(out.dtype.element_ty), mask=real)
