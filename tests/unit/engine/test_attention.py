"""Attention in torch against float64, over every KV dtype."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from services.engine.torch_backend import TorchBackend
from tests.unit.engine.attention_cases import LAYER, Case, expected, scene, spoil, stored
from tests.unit.engine.tiny_decoder import CPU

DTYPES = ["float32", "float16", "int8"]
CASES = [
    Case(chunks=((0, 1),)),
    Case(chunks=((0, 16), (0, 17), (15, 1), (16, 1))),
    Case(chunks=((0, 1), (5, 1), (40, 1), (3, 30), (90, 1), (0, 21)), heads=3, kv_heads=3),
    Case(chunks=((70, 9), (64, 1), (33, 2)), heads=9, kv_heads=3),
    Case(chunks=((100, 40), (131, 1)), heads=4, kv_heads=1, head_dim=128, block_size=32),
    Case(chunks=((9, 5), (2, 1), (7, 1)), heads=6, kv_heads=2, head_dim=8, block_size=4),
]


@pytest.mark.parametrize("kv_dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_is_that_of_float64_over_the_stored_values(case: Case, kv_dtype: str) -> None:
    step = scene(replace(case, kv_dtype=kv_dtype), CPU)
    attended = step.attended(TorchBackend())
    np.testing.assert_allclose(attended.double().numpy(), expected(step), rtol=0, atol=2e-5)


@pytest.mark.parametrize("kv_dtype", DTYPES)
def test_what_is_stored_is_the_nearest_value_that_the_dtype_has(kv_dtype: str) -> None:
    step = scene(Case(chunks=((3, 40),), kv_dtype=kv_dtype), CPU)
    step.attended(TorchBackend())
    for written, read in zip(
        (step.key, step.value), stored(step.cache, step.batch.chunks[0].blocks, LAYER), strict=True
    ):
        exact = written.double().numpy().transpose(1, 0, 2)
        off = np.abs(read[:, 3:43] - exact)
        if kv_dtype == "int8":
            scale = np.abs(exact).max(axis=-1, keepdims=True) / 127
            assert (off <= scale * 0.5001).all() and off.max() > 0
        else:
            assert (read[:, 3:43] == exact.astype(kv_dtype)).all()


def test_a_vector_of_zeros_stays_one_in_int8() -> None:
    step = scene(Case(chunks=((0, 3),), kv_dtype="int8"), CPU)
    step.key.zero_(), step.value.zero_()
    assert step.attended(TorchBackend()).eq(0).all()


@pytest.mark.parametrize("kv_dtype", DTYPES)
def test_a_neighbours_broken_block_is_never_read(kv_dtype: str) -> None:
    step = scene(Case(chunks=((20, 1), (40, 1), (30, 5)), kv_dtype=kv_dtype), CPU)
    spoil(step.cache, LAYER, step.batch.chunks[1].blocks[0])
    attended = step.attended(TorchBackend())
    assert attended[1].isnan().all()
    assert attended[[0, 2, 3, 4, 5, 6]].isfinite().all()


def test_half_precision_rows_stay_in_half_precision() -> None:
    step = scene(Case(chunks=((20, 1), (30, 5)), kv_dtype="float16", dtype=torch.float16), CPU)
    attended = step.attended(TorchBackend())
    assert attended.dtype == torch.float16
    np.testing.assert_allclose(attended.double().numpy(), expected(step), rtol=0, atol=4e-3)
