"""The vector operations with an answer of their own: exponentials and sums in a written order."""

import numpy as np
from numba.core import types
from numba.extending import intrinsic

from services.engine.compiled.kernels.row_tiles import square_sum
from services.engine.compiled.kernels.vector_ir import FLOATS, Vectors
from services.engine.jit import outer


@intrinsic
def exp16(context, source, target):
    def emit(context, builder, signature, arguments):
        v = Vectors(builder)
        v.store(v.exp(v.load(FLOATS, arguments[0])), arguments[1])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@outer
def _exp(x, y):
    for at in range(0, x.size, 16):
        exp16(np.int64(x[at:].ctypes.data), np.int64(y[at:].ctypes.data))


@outer
def _square_sum(x):
    return square_sum(np.int64(x.ctypes.data), x.size)


def exp(values: list[float]) -> np.ndarray:
    x = np.zeros(-(-len(values) // 16) * 16, np.float32)
    x[: len(values)] = values
    y = np.empty_like(x)
    _exp(x, y)
    return y[: len(values)]


def test_exponentials_are_within_two_units_in_the_last_place() -> None:
    x = np.concatenate([np.linspace(-86.9, 87.9, 40_001), np.linspace(-1e-3, 1e-3, 2_001)]).astype(np.float32)
    expected = np.exp(x.astype(np.float64))
    error = np.abs(exp(x.tolist()) - expected) / np.spacing(expected.astype(np.float32))
    assert error.max() <= 2


def test_exponentials_of_what_is_special() -> None:
    zero, tiny, huge, lost, nan = exp([0.0, -1e30, 1e30, -np.inf, np.nan])
    assert zero == 1.0
    assert 0 < tiny < 1e-37 and 0 < lost < 1e-37
    assert 1e38 < huge < np.inf
    assert np.isnan(nan)


def test_a_sum_of_squares_is_right_and_keeps_a_nan() -> None:
    x = np.random.default_rng(0).standard_normal(96).astype(np.float32)
    assert np.isclose(_square_sum(x), (x.astype(np.float64) ** 2).sum(), rtol=1e-6)
    x[50] = np.nan
    assert np.isnan(_square_sum(x))
