"""What a step reads and where it writes: the model, the work of this step, and buffers that outlive it."""

from typing import NamedTuple

import numpy as np

from services.engine.compiled.kernels.linear import MATRIX

LAYER = np.dtype([("qkv", MATRIX), ("out", MATRIX), ("gate_up", MATRIX), ("down", MATRIX)], align=True)


class Model(NamedTuple):
    """The weights; arrays per layer are empty where the model has none."""

    layers: np.ndarray  # [layers] of LAYER
    embedding: np.ndarray  # [1] of MATRIX
    head: np.ndarray  # [1] of MATRIX
    attention_norm: np.ndarray  # [layers, hidden]
    mlp_norm: np.ndarray  # [layers, hidden]
    norm: np.ndarray  # [hidden]
    qkv_bias: np.ndarray  # [layers, 0 or (heads + 2 kv_heads) · head_dim]
    out_bias: np.ndarray  # [layers, 0 or hidden]
    query_norm: np.ndarray  # [layers, 0 or head_dim]
    key_norm: np.ndarray  # [layers, 0 or head_dim]
    cos: np.ndarray  # [positions, head_dim / 2]
    sin: np.ndarray
    attend: int
    """Address of `attention.attend_unit`'s kernel."""
    heads: int
    eps: float
    query_scale: float


class Work(NamedTuple):
    """What to compute in this step."""

    tokens: np.ndarray  # [rows]
    positions: np.ndarray  # [rows]
    requests: np.ndarray  # [rows], the row's line in `tables`
    tables: np.ndarray  # [requests, blocks]
    units: np.ndarray  # [units, 2]: first row and number of rows, neighbouring tokens of one request
    kept: np.ndarray  # [rows that matter after the last layer's KV is stored], ascending; mostly those that draw
    last_units: np.ndarray  # as `units`, of the kept rows only
    has_logits: bool
    """Whether the logits of the kept rows are wanted."""


class Space(NamedTuple):
    """Buffers that outlive the step; large enough for its rows."""

    hidden: np.ndarray  # [rows, hidden]
    normed: np.ndarray  # [rows, hidden]
    fixed: np.ndarray  # rows in fixed point, of whatever is multiplied next
    own: np.ndarray  # [threads, FEW, hidden], as `normed`, for steps with few rows
    own_fixed: np.ndarray  # [threads, bytes], as `fixed`
    qkv: np.ndarray  # [rows, (heads + 2 kv_heads) · head_dim]
    attended: np.ndarray  # [rows, heads · head_dim]
    gate_up: np.ndarray  # [rows, 2 · intermediate], in panels of 16, gate and up by turns
    activated: np.ndarray  # [rows, intermediate]
    logits: np.ndarray  # [rows that draw, vocabulary in whole panels]
    panels: np.ndarray  # [threads, largest panel]
    attention: np.ndarray  # [threads, scratch_bytes]
