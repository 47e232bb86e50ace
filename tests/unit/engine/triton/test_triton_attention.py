"""The attention and KV kernels against float64, on a GPU or under Triton's interpreter."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from services.engine.triton.attention import SPLIT
from services.engine.triton.backend import TritonBackend
from tests.unit.engine.attention_cases import LAYER, Case, expected, scene, spoil
from tests.unit.engine.triton.device import DEVICE

DTYPES = ["float32", "float16", "int8"]
TOLERANCE = {torch.float32: 3e-5, torch.float16: 1e-2}

CASES = [
    Case(chunks=((0, 1),)),
    Case(chunks=((0, 2), (15, 1), (16, 1), (0, 1))),
    Case(chunks=((0, 17), (3, 30), (31, 1)), heads=3, kv_heads=3, head_dim=128, block_size=32),
    Case(chunks=((70, 9), (64, 1), (33, 1)), heads=9, kv_heads=3),
    Case(chunks=((9, 5), (2, 1), (7, 1)), heads=6, kv_heads=2, head_dim=12, block_size=4),
    Case(chunks=((SPLIT - 1, 1), (SPLIT, 1), (2 * SPLIT + 70, 1), (5, 1)), heads=4, kv_heads=1, block_size=32),
    Case(chunks=((40, 33),), heads=4, kv_heads=1, head_dim=128, dtype=torch.float16),
    Case(chunks=((100, 1), (20, 1)), heads=8, kv_heads=2, head_dim=128, dtype=torch.float16),
]

RAGGED = [
    ((0, 1),),
    ((0, 64), (64, 1)),
    ((1, 63), (63, 2), (62, 1), (200, 1)),
    ((130, 21), (0, 22), (130, 1), (7, 1), (SPLIT, 1)),
]


@pytest.mark.parametrize("kv_dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_is_that_of_float64_over_the_stored_values(case: Case, kv_dtype: str) -> None:
    check(replace(case, kv_dtype=kv_dtype))


@pytest.mark.sweep
@pytest.mark.parametrize("kv_dtype", DTYPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize(("block_size", "group"), list(product((16, 32), (1, 3, 4))))
@pytest.mark.parametrize("chunks", RAGGED, ids=str)
def test_attention_over_every_shape(
    chunks: tuple[tuple[int, int], ...], block_size: int, group: int, head_dim: int, dtype: torch.dtype, kv_dtype: str
) -> None:
    check(Case(chunks, 2 * group, 2, head_dim, block_size, kv_dtype, dtype))


def check(case: Case) -> None:
    step = scene(case, DEVICE)
    attended = step.attended(TritonBackend())
    assert attended.dtype == case.dtype
    off = np.abs(attended.double().cpu().numpy() - expected(step))
    assert off.max() < TOLERANCE[case.dtype]


@pytest.mark.parametrize("kv_dtype", DTYPES)
@pytest.mark.parametrize(("head_dim", "block_size"), [(64, 16), (12, 4)])
def test_the_bytes_of_a_block_are_those_that_torch_writes(kv_dtype: str, head_dim: int, block_size: int) -> None:
    case = Case(((0, 3), (block_size - 1, 1), (5, 20)), 4, 2, head_dim, block_size, kv_dtype)
    ours, theirs = scene(case, DEVICE), scene(case, DEVICE)
    for step in (ours, theirs):
        step.key[0] = 0
        step.cache.clear(step.batch.fresh)
    TritonBackend().attention(ours.batch).store(ours.key, ours.value, ours.cache.layer(LAYER))
    theirs.cache.layer(LAYER).write(theirs.key, theirs.value, theirs.batch.blocks, theirs.batch.offsets)
    for block in range(ours.cache.num_blocks):
        assert ours.cache.read_block(block) == theirs.cache.read_block(block)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_what_is_not_a_number_stays_that_in_int8() -> None:
    step = scene(Case(((0, 1), (0, 1), (0, 1)), kv_dtype="int8"), DEVICE)
    step.value[0, 0, 5] = torch.nan
    step.value[1, 0, 5] = torch.inf
    attended = step.attended(TritonBackend())
    assert attended[:2, :2].isnan().all()
    assert attended[:2, 2:].isfinite().all() and attended[2].isfinite().all()


@pytest.mark.parametrize("kv_dtype", DTYPES)
def test_a_neighbours_broken_block_is_never_read(kv_dtype: str) -> None:
    step = scene(Case(((20, 1), (40, 1), (30, 5)), kv_dtype=kv_dtype), DEVICE)
    spoil(step.cache, LAYER, step.batch.chunks[1].blocks[0])
    attended = step.attended(TritonBackend())
    assert attended[1].isnan().all()
    assert attended[[0, 2, 3, 4, 5, 6]].isfinite().all()


@pytest.mark.parametrize("heads", [2, 6])
def test_a_row_has_the_same_bits_alone_and_in_company(heads: int) -> None:
    case = Case(((SPLIT + 40, 1), (9, 1), (30, 40)), heads=heads)
    together = scene(case, DEVICE)
    attended = together.attended(TritonBackend())
    layer = together.cache.layer(LAYER)
    for chunk, rows in zip(together.batch.chunks, (slice(0, 1), slice(1, 2), slice(2, 42)), strict=True):
        batch = type(together.batch).of([chunk], case.block_size, DEVICE)
        alone = TritonBackend().attention(batch).attend(together.query[rows], layer)
        assert torch.equal(alone, attended[rows])


def test_a_row_has_the_same_bits_however_its_chunk_is_cut() -> None:
    case = Case(((30, 70),), heads=6)
    whole = scene(case, DEVICE)
    attended = whole.attended(TritonBackend())
    (chunk,) = whole.batch.chunks
    at = 0
    for size in (2, 41, 5, 22):
        part = replace(chunk, tokens=chunk.tokens[at : at + size], start=chunk.start + at)
        batch = type(whole.batch).of([part], case.block_size, DEVICE)
        rows = TritonBackend().attention(batch).attend(whole.query[at : at + size], whole.cache.layer(LAYER))
        assert torch.equal(rows, attended[at : at + size])
        at += size
