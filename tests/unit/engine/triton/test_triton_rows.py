"""The kernels that work row by row, and the int8 product, against float64."""

import pytest
import torch

from services.engine.backend import HeadNorms, Norm
from services.engine.matrix import Int8Matrix
from services.engine.triton.backend import TritonBackend
from tests.unit.engine.triton.device import DEVICE

EPS = 1e-5
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3}
"""Relative to the largest value of a result."""

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def assert_close(ours: torch.Tensor, exact: torch.Tensor) -> None:
    off = (ours.double() - exact).abs().max() / exact.abs().max()
    assert off < TOLERANCE[ours.dtype]


def normalized(x: torch.Tensor, norm: Norm) -> torch.Tensor:
    x = x.double()
    return x / (x.square().mean(dim=-1, keepdim=True) + norm.eps).sqrt() * norm.weight.double()


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Each pair of halves as one complex number, turned."""
    half = x.shape[-1] // 2
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat((turned.real, turned.imag), dim=-1)


@DTYPES
@pytest.mark.parametrize(("rows", "width"), [(1, 8), (5, 576), (2, 4096)])
def test_rows_are_normalized(rows: int, width: int, dtype: torch.dtype) -> None:
    hidden, norm = random(rows, width, dtype=dtype), Norm(random(width, dtype=dtype, seed=1), EPS)
    assert_close(TritonBackend().normalized(hidden, norm), normalized(hidden, norm))


@DTYPES
@pytest.mark.parametrize(("rows", "width"), [(1, 48), (6, 576)])
def test_an_update_is_added_before_rows_are_normalized(rows: int, width: int, dtype: torch.dtype) -> None:
    hidden, update = random(rows, width, dtype=dtype), random(rows, width, dtype=dtype, seed=2)
    norm = Norm(random(width, dtype=dtype, seed=1), EPS)
    summed, result = TritonBackend().added(hidden, update, norm)
    assert torch.equal(summed, hidden + update)
    assert_close(result, normalized(summed, norm))


def test_a_row_of_zeros_is_normalized_to_zeros() -> None:
    assert TritonBackend().normalized(torch.zeros(2, 64, device=DEVICE), Norm(random(64), EPS)).eq(0).all()


@DTYPES
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 2, 64), (3, 1, 128), (2, 2, 12)])
def test_heads_are_normalized_and_rotated(
    heads: int, kv_heads: int, head_dim: int, normed: bool, dtype: torch.dtype
) -> None:
    fused = random(5, heads + 2 * kv_heads, head_dim, dtype=dtype)
    query, key, value = torch.split(fused, [heads, kv_heads, kv_heads], dim=1)
    exact_query, exact_key, before = query.double(), key.double(), value.clone()
    norms = None
    if normed:
        norms = HeadNorms(Norm(random(head_dim, seed=3), EPS), Norm(random(head_dim, seed=4), 1e-2))
        exact_query, exact_key = normalized(exact_query, norms.query), normalized(exact_key, norms.key)
    angles = 3 * random(5, head_dim // 2, seed=5)
    query, key = TritonBackend().rotated(query, key, (angles.cos()[:, None], angles.sin()[:, None]), norms)
    assert_close(query, rotated(exact_query, angles.double()))
    assert_close(key, rotated(exact_key, angles.double()))
    assert torch.equal(value, before)


@DTYPES
@pytest.mark.parametrize(("rows", "inner"), [(1, 16), (3, 1536), (2, 2500)])
def test_gates_are_applied(rows: int, inner: int, dtype: torch.dtype) -> None:
    gate_up = 4 * random(rows, 2 * inner, dtype=dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    assert_close(TritonBackend().gated(gate_up), gate * gate.sigmoid() * up)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")
def test_a_gate_far_from_zero_is_open_or_shut() -> None:
    gate_up = torch.tensor([[1e4, -1e4, 2.0, 3.0]], device=DEVICE)
    assert TritonBackend().gated(gate_up).tolist() == [[2e4, 0.0]]


@DTYPES
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 64, 32), (3, 200, 77), (40, 96, 33), (70, 33, 5)])
def test_an_int8_matrix_multiplies_as_its_float_values_do(
    rows: int, inputs: int, outputs: int, biased: bool, dtype: torch.dtype
) -> None:
    x, matrix = random(rows, inputs, dtype=dtype), Int8Matrix.nearest(random(outputs, inputs, seed=6))
    bias = random(outputs, dtype=dtype, seed=7) if biased else None
    exact = x.double() @ matrix.floats().double().T + (0 if bias is None else bias.double())
    assert_close(TritonBackend().linear(x, matrix, bias), exact)


def test_a_row_times_an_int8_matrix_has_the_same_bits_alone_and_in_company() -> None:
    x, matrix = random(70, 200), Int8Matrix.nearest(random(40, 200, seed=6))
    together = TritonBackend().linear(x, matrix)
    for at in (0, 17, 69):
        assert torch.equal(TritonBackend().linear(x[at : at + 1], matrix), together[at : at + 1])


def test_a_float_matrix_is_multiplied_too() -> None:
    x, matrix, bias = random(3, 20), random(7, 20, seed=1), random(7, seed=2)
    assert_close(TritonBackend().linear(x, matrix, bias), x.double() @ matrix.double().T + bias.double())
