"""Attention over paged KV, read in place: some tokens of one request against one KV head, page after page.

The rows of a unit are its tokens' query heads that share the KV head. They walk the pages together, so that a page is
read once for all of them; what each row computes is the same as if it walked alone (see `attention_tiles`).
"""

from functools import cache

import numpy as np

from services.engine.compiled.kernels.attention_tiles import MASKED, PAGE, prefetch, score_tile, soften, value_tile
from services.engine.compiled.kernels.forms import PANEL
from services.engine.compiled.kernels.row_tiles import copy_times, fill, get_float, get_long
from services.engine.jit import native

TOKENS = 16
"""Most tokens in a unit: their queries, scores and outputs stay in the first-level cache."""


def scratch_bytes(group: int, head_dim: int) -> int:
    """Of a thread's own space for one unit: queries, outputs, scores, and three numbers, for each row."""
    return TOKENS * group * 4 * (2 * head_dim + PAGE + 3)


@cache
def attend_unit(width: int) -> int:
    """Address of the kernel for KV numbers of so many bytes; its numbers are those of `_attend`."""
    return native(_attend, width, 16)


def _attend(
    width,
    queries,  # address of the unit's first query head; so `outputs`
    outputs,
    query_bytes,  # from token to token; so `output_bytes`
    output_bytes,
    tokens,
    group,  # query heads of a token
    position,  # of the first token
    table,  # address of the request's block table, int64
    keys,  # address of the head's keys in block 0; values and scales lie further by the two below
    to_values,
    to_scales,
    scales_bytes,  # of all heads' key scales, after which come those of values
    block_bytes,
    block_size,
    head_dim,
    scratch,
):
    one = np.float32(1)
    rows, row_bytes = tokens * group, head_dim * 4
    own_outputs = scratch + rows * row_bytes
    scores = own_outputs + rows * row_bytes
    largest = scores + rows * PAGE * 4
    total, shrink = largest + rows * 4, largest + rows * 8
    for token in range(tokens):
        target = scratch + token * group * row_bytes
        copy_times(queries + token * query_bytes, target, group * head_dim, one)
    fill(own_outputs, rows * head_dim, np.float32(0))
    fill(largest, rows, np.float32(MASKED))
    fill(total, rows, np.float32(0))

    end = position + tokens
    for first in range(0, end, PAGE):
        within = first % block_size
        base = keys + get_long(table + first // block_size * 8) * block_bytes
        if within + PAGE == block_size and first + PAGE < end:
            following = keys + get_long(table + (first + PAGE) // block_size * 8) * block_bytes
            prefetch(following, block_size * head_dim * width)
            prefetch(following + to_values, block_size * head_dim * width)
        score_tile(width, base + within * width, block_size * width, scratch, rows, head_dim, scores)
        scales = base + to_scales + within * 4
        for row in range(rows):
            seen = min(position + row // group + 1 - first, PAGE)
            page, at = scores + row * PAGE * 4, row * 4
            soften(width, page, seen, largest + at, total + at, shrink + at, scales, scales + scales_bytes)
        values = base + to_values + within * head_dim * width
        for at in range(0, head_dim, PANEL):
            value_tile(width, values + at * width, head_dim, scores, shrink, own_outputs + at * 4, rows)
    for row in range(rows):
        token = row // group
        target = outputs + token * output_bytes + (row - token * group) * row_bytes
        copy_times(own_outputs + row * row_bytes, target, head_dim, one / get_float(total + row * 4))
