"""Linear layers over packed panels: right in every form, and the same bits however many rows there are."""

import numpy as np
import pytest

from services.engine.compiled.kernels.forms import FORMS, WHOLE
from tests.unit.engine.compiled.kernels import Floats, Multiplier, stored

ROWS = 37
OUTPUTS, INPUTS = 104, 96


def random(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def decoded(rows: Floats, form: str) -> Floats:
    """The float32 matrix that a form stands for."""
    if form == "int8":
        scales = (np.abs(rows).max(axis=1) / np.float32(127)).astype(np.float32)
        return np.rint(rows / scales[:, None]).astype(np.float32) * scales[:, None]
    return stored(rows, form).floats()


@pytest.mark.parametrize("form", [form for form in FORMS if form not in WHOLE])
def test_a_form_of_floats_gives_what_its_float32_matrix_gives_bit_for_bit(form: str) -> None:
    weights, x = random(OUTPUTS, INPUTS), random(ROWS, INPUTS, seed=1)
    matrix = decoded(weights, form)
    got = Multiplier(stored(weights, form), form)(x)
    np.testing.assert_allclose(got, x.astype(np.float64) @ matrix.T.astype(np.float64), atol=2e-5)
    assert np.array_equal(got, Multiplier(stored(matrix, "float32"), "float32")(x))


@pytest.mark.parametrize("form", WHOLE)
def test_whole_numbers_are_off_by_what_sixteen_bits_of_a_row_round_off(form: str) -> None:
    weights, x = random(OUTPUTS, INPUTS), random(ROWS, INPUTS, seed=1)
    x[:, 32:64] *= 1e3
    matrix = decoded(weights, form).astype(np.float64)
    got = Multiplier(stored(weights, form), form)(x)
    rounding_of_sums = 1e-6 * (np.abs(x) @ np.abs(matrix.T))
    assert (np.abs(got - x @ matrix.T) <= half_steps(x) @ np.abs(matrix.T) + rounding_of_sums).all()


@pytest.mark.parametrize("form", ["int8", "q8_0"])
def test_whole_numbers_times_whole_numbers_are_exact(form: str) -> None:
    generator = np.random.default_rng(1)
    weights = generator.integers(-127, 128, (OUTPUTS, INPUTS)).astype(np.float32)
    x = generator.integers(-32767, 32768, (ROWS, INPUTS)).astype(np.float32)
    weights[:, ::32], x[:, 7::32] = 127, -32767  # so that scales are 1
    wanted = weights.astype(np.int64) @ x.astype(np.int64).T
    group = Multiplier(stored(weights[:, :32], form), form)(x[:, :32])
    assert np.array_equal(group, (weights[:, :32].astype(np.int64) @ x[:, :32].astype(np.int64).T).T.astype(np.float32))
    np.testing.assert_allclose(Multiplier(stored(weights, form), form)(x), wanted.T, rtol=3e-7, atol=64)


def half_steps(x: Floats) -> np.ndarray:
    """The most that fixed point rounds off each number."""
    groups = x.astype(np.float64).reshape(len(x), -1, 32)
    return np.broadcast_to(np.abs(groups).max(axis=-1, keepdims=True) / 32767 / 2, groups.shape).reshape(x.shape)


@pytest.mark.parametrize("form", FORMS)
def test_a_row_gets_the_same_bits_beside_any_number_of_others(form: str) -> None:
    x = random(ROWS, INPUTS, seed=2)
    multiply = Multiplier(stored(random(OUTPUTS, INPUTS), form), form)
    whole = multiply(x)
    for count in range(1, 20):
        assert np.array_equal(multiply(x[5 : 5 + count]), whole[5 : 5 + count]), f"{count} rows"


@pytest.mark.parametrize("outputs", [16, 17, 48, 80, 112])
def test_the_last_panels_are_complete_and_what_is_missing_of_one_is_not_seen(outputs: int) -> None:
    weights, x = random(outputs, INPUTS), random(3, INPUTS, seed=3)
    for rows in (1, 2, 3):
        got = Multiplier(stored(weights, "q4_1"), "q4_1")(x[:rows])
        np.testing.assert_allclose(got, x[:rows] @ decoded(weights, "q4_1").T, atol=2e-3)


def test_results_are_added_to_what_is_there_on_demand() -> None:
    weights, x, onto = random(OUTPUTS, INPUTS), random(7, INPUTS, seed=4), random(7, OUTPUTS, seed=5)
    multiply = Multiplier(stored(weights, "float32"), "float32")
    for rows in (2, 7):
        assert np.array_equal(multiply(x[:rows], onto[:rows]), multiply(x[:rows]) + onto[:rows])


def test_many_rows_are_cut_into_blocks_without_a_trace() -> None:
    x = random(400, 512, seed=6)
    multiply = Multiplier(stored(random(64, 512), "q8_0"), "q8_0")
    assert np.array_equal(multiply(x)[333:334], multiply(x[333:334]))


def test_a_nan_stays_in_its_row() -> None:
    x = random(8, INPUTS, seed=7)
    multiply = Multiplier(stored(random(OUTPUTS, INPUTS), "q4_1"), "q4_1")
    clean = multiply(x)
    x[3, 10] = np.nan
    got = multiply(x)
    assert np.isnan(got[3]).all()
    x[3, 10] = np.inf
    assert not np.isfinite(multiply(x)[3]).any()
    assert np.array_equal(np.delete(got, 3, axis=0), np.delete(clean, 3, axis=0))


def test_a_channel_of_zeros_is_zero_in_int8() -> None:
    weights = random(16, 32)
    weights[4] = 0
    got = Multiplier(stored(weights, "int8"), "int8")(random(2, 32, seed=8))
    assert (got[:, 4] == 0).all() and np.isfinite(got).all()
