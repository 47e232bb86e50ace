"""One step of the whole model in one call: every thread runs `step`, and goes on when a phase's pieces are all done.

    for each layer:   norm → qkv → heads and KV → attention → out (+) → norm → gate·up → down (+)
    for rows that draw:   norm → head

Owns the order of phases and what is shared between threads. Row counts, tables and addresses come in ready-made.
"""

import numpy as np

from services.engine.compiled.kernels.calls import call
from services.engine.compiled.kernels.fixed_point import fix_row
from services.engine.compiled.kernels.forms import PANEL
from services.engine.compiled.kernels.linear import Job, Rows, decoded, gated, linear, pieces
from services.engine.compiled.kernels.linear_kernels import FEW
from services.engine.compiled.kernels.row_tiles import get_float
from services.engine.compiled.kernels.rows import Angles, Heads, Place, clear_block, normalize, ready_head
from services.engine.compiled.kernels.team import ticks
from services.engine.compiled.kernels.turns import ATTENTION, HEAD, HEADS, LINEAR, NORM, begin, claim, end
from services.engine.jit import inner, outer

COUNTERS_PER_LAYER = 10
COUNTERS_AROUND = 4
ROWS_AT_ONCE = 4
"""Rows a thread takes at a time where each is little work."""


@inner
def _address(array):
    return np.int64(array.ctypes.data)


@inner
def _rows(array, count):
    return Rows(np.int64(array.ctypes.data), np.int64(array.strides[0]), np.int64(count))


@inner
def _begin(model, work, space, cache, team, thread):
    """Embeddings, and blocks made ready: before the layers, for there threads write into one block side by side."""
    turn, mine = begin(team, thread, 0, NORM), 0
    scratch = _address(space.panels[thread])
    count = work.tokens.size
    row = claim(turn, count)
    while row < count:
        token = work.tokens[row]
        source = decoded(model.embedding[0], token // PANEL, 1, scratch)
        _copy_column(source, token % PANEL, space.hidden[row])
        position = work.positions[row]
        if position % cache.block_size == 0:
            clear_block(cache, work.tables[work.requests[row], position // cache.block_size])
        mine += 1
        row = claim(turn, count)
    end(team, turn, mine, count)


@inner
def _copy_column(panel, column, target):
    for at in range(target.size):
        target[at] = get_float(panel + (at * PANEL + column) * 4)


@inner
def _normed(space, bias, norm, count, matrix, team, thread, number):
    """The first `count` rows of hidden states (to which `bias`, or nothing, is added first), normalized, as `matrix`
    reads them. `norm` is a weight and eps.

    Few rows each thread normalizes for itself, which is less than waiting for the others. (One that comes late reads
    what others may be changing, but then finds no piece left to use it for.)
    """
    weight, eps = norm
    turn, mine = begin(team, thread, number, NORM), 0
    if count <= FEW and bias.size == 0:
        own = space.own[thread]
        for row in range(count):
            normalize(space.hidden[row], weight, eps, own[row])
        team.ticks[thread, NORM] += ticks() - turn.since
        return _as_read(matrix, _rows(own, count), space, team, thread, number)
    total = (count + ROWS_AT_ONCE - 1) // ROWS_AT_ONCE
    piece = claim(turn, total)
    while piece < total:
        for row in range(piece * ROWS_AT_ONCE, min((piece + 1) * ROWS_AT_ONCE, count)):
            source = space.hidden[row]
            for at in range(bias.size):
                source[at] += bias[at]
            normalize(source, weight, eps, space.normed[row])
            if matrix.fixed != 0:
                fix_row(_address(space.normed[row]), matrix.inputs, _address(space.fixed), row, count)
        mine += 1
        piece = claim(turn, total)
    end(team, turn, mine, total)
    if matrix.fixed != 0:
        return Rows(_address(space.fixed), np.int64(0), np.int64(count))
    return _rows(space.normed, count)


@inner
def _as_read(matrix, x, space, team, thread, number):
    """Rows of float32 as the matrix reads them: the same, or in fixed point. Few rows again each thread for itself."""
    if matrix.fixed == 0:
        return x
    turn, mine = begin(team, thread, number, NORM), 0
    if x.count <= FEW:
        rows = _address(space.own_fixed[thread])
        for row in range(x.count):
            fix_row(x.address + row * x.stride, matrix.inputs, rows, row, x.count)
        team.ticks[thread, NORM] += ticks() - turn.since
        return Rows(rows, np.int64(0), x.count)
    rows = _address(space.fixed)
    total = (x.count + ROWS_AT_ONCE - 1) // ROWS_AT_ONCE
    piece = claim(turn, total)
    while piece < total:
        for row in range(piece * ROWS_AT_ONCE, min((piece + 1) * ROWS_AT_ONCE, x.count)):
            fix_row(x.address + row * x.stride, matrix.inputs, rows, row, x.count)
        mine += 1
        piece = claim(turn, total)
    end(team, turn, mine, total)
    return Rows(rows, np.int64(0), x.count)


@inner
def _ready(model, work, space, cache, layer, row, head):
    """Heads of a row that read one KV head, and its key and value into the cache."""
    heads = Heads(
        model.heads, model.qkv_bias[layer], model.query_norm[layer], model.key_norm[layer], model.eps, model.query_scale
    )
    position = work.positions[row]
    block = work.tables[work.requests[row], position // cache.block_size]
    place = Place(np.int64(layer), block, position % cache.block_size)
    ready_head(space.qkv[row], heads, Angles(model.cos[position], model.sin[position]), cache, place, head)


@inner
def _heads(model, work, space, cache, layer, team, thread, number):
    turn, mine = begin(team, thread, number, HEADS), 0
    count = work.tokens.size
    total = (count + ROWS_AT_ONCE - 1) // ROWS_AT_ONCE
    piece = claim(turn, total)
    while piece < total:
        for row in range(piece * ROWS_AT_ONCE, min((piece + 1) * ROWS_AT_ONCE, count)):
            for head in range(cache.kv_heads):
                _ready(model, work, space, cache, layer, row, head)
        mine += 1
        piece = claim(turn, total)
    end(team, turn, mine, total)


@inner
def _attention(model, work, units, is_ready, space, cache, layer, team, thread, number):
    """Units that are not ready are made so first: a unit that is all its request has in this step waits for nobody."""
    turn, mine = begin(team, thread, number, ATTENTION), 0
    group = model.heads // cache.kv_heads
    count = units.shape[0] * cache.kv_heads
    scratch = _address(space.attention[thread])
    query_bytes, output_bytes = space.qkv.shape[1] * 4, space.attended.shape[1] * 4
    head_bytes = cache.head_dim * cache.block_size * cache.width
    part = cache.kv_heads * head_bytes
    piece = claim(turn, count)
    while piece < count:
        # The last units first: they have the longest contexts, and what is long should not come last.
        which = units.shape[0] - 1 - piece // cache.kv_heads
        head = piece % cache.kv_heads
        row, tokens = units[which, 0], units[which, 1]
        if not is_ready:
            for at in range(row, row + tokens):
                _ready(model, work, space, cache, layer, at, head)
        offset = head * group * cache.head_dim * 4
        call(
            model.attend,
            (
                _address(space.qkv) + row * query_bytes + offset,
                _address(space.attended) + row * output_bytes + offset,
                query_bytes,
                output_bytes,
                tokens,
                group,
                work.positions[row],
                _address(work.tables[work.requests[row]]),
                cache.address + layer * cache.layer_bytes + head * head_bytes,
                part,
                2 * part + head * (cache.block_size * 4 - head_bytes),
                cache.kv_heads * cache.block_size * 4,
                cache.block_bytes,
                cache.block_size,
                cache.head_dim,
                scratch,
            ),
        )
        mine += 1
        piece = claim(turn, count)
    end(team, turn, mine, count)


@inner
def _compact(work, space, team, thread, number):
    """Moves the kept rows to the front."""
    turn, mine = begin(team, thread, number, ATTENTION), 0
    if claim(turn, 1) == 0:
        for at in range(work.kept.size):
            row = work.kept[at]
            if row != at:
                space.hidden[at] = space.hidden[row]
                space.attended[at] = space.attended[row]
        mine = 1
    end(team, turn, mine, 1)


@inner
def _linear(matrix, x, y, adds, space, team, thread, number, phase):
    turn = begin(team, thread, number, phase)
    mine = linear(matrix, x, y, Job(turn, _address(space.panels[thread]), adds))
    end(team, turn, mine, pieces(matrix, x.count))


@inner
def _gated(matrix, x, space, team, thread, number):
    """Gate and up, and what SwiGLU makes of them."""
    turn = begin(team, thread, number, LINEAR)
    y = _rows(space.activated, x.count)
    job = Job(turn, _address(space.panels[thread]), 0)
    mine = gated(matrix, x, _rows(space.gate_up, x.count), y, job)
    end(team, turn, mine, pieces(matrix, x.count))
    return y


@outer
def step(thread, team, model, work, space, cache):
    """One thread's part of a step: KV of all rows in the cache, hidden states and logits of the kept rows in `space`.

    In the last layer only the kept rows go on once KV is stored: of a long prompt that is one row, or none.
    """
    count, layers = work.tokens.size, model.layers.size
    no_bias = model.norm[:0]
    _begin(model, work, space, cache, team, thread)
    for layer in range(layers):
        weights, units = model.layers[layer], work.units
        at = COUNTERS_AROUND + layer * COUNTERS_PER_LAYER
        norm = (model.attention_norm[layer], model.eps)
        h = _normed(space, no_bias, norm, count, weights.qkv, team, thread, at)
        _linear(weights.qkv, h, _rows(space.qkv, count), 0, space, team, thread, at + 1, LINEAR)
        is_last = layer == layers - 1
        is_ready = units.shape[0] > work.tables.shape[0] or (is_last and work.kept.size < count)
        if is_ready:
            _heads(model, work, space, cache, layer, team, thread, at + 2)
        if is_last:
            count, units = work.kept.size, work.last_units
            if count == 0:
                return
        _attention(model, work, units, is_ready, space, cache, layer, team, thread, at + 3)
        if is_last and count < work.tokens.size:
            _compact(work, space, team, thread, 3)
        x = _rows(space.hidden, count)
        attended = _as_read(weights.out, _rows(space.attended, count), space, team, thread, at + 4)
        _linear(weights.out, attended, x, 1, space, team, thread, at + 5, LINEAR)
        norm = (model.mlp_norm[layer], model.eps)
        h = _normed(space, model.out_bias[layer], norm, count, weights.gate_up, team, thread, at + 6)
        activated = _gated(weights.gate_up, h, space, team, thread, at + 7)
        activated = _as_read(weights.down, activated, space, team, thread, at + 8)
        _linear(weights.down, activated, x, 1, space, team, thread, at + 9, LINEAR)
    if work.has_logits:
        h = _normed(space, no_bias, (model.norm, model.eps), count, model.head[0], team, thread, 1)
        _linear(model.head[0], h, _rows(space.logits, count), 0, space, team, thread, 2, HEAD)
