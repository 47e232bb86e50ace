"""What stands out from its like."""

import numpy as np

from services.engine.quality.outliers import outliers


def test_one_far_value_stands_out() -> None:
    assert outliers([1.0, 1.1, 0.9, 5.0, 1.05], times=2) == [3]


def test_values_that_are_alike_do_not_though_one_is_the_largest() -> None:
    assert outliers([1.0, 1.0, 1.0, 1.0, 1.001], times=2) == []


def test_a_wide_spread_is_no_outlier() -> None:
    assert outliers([1.0, 2.0, 3.0, 4.0, 5.0], times=1.5) == []


def test_many_far_values_do_not_hide_one_another_while_they_are_fewer_than_half() -> None:
    assert outliers([1.0, 1.1, 0.9, 1.05, 8.0, 9.0, 7.0], times=2) == [4, 5, 6]


def test_an_error_among_zeros_stands_out_and_zeros_do_not() -> None:
    assert outliers([0.0, 0.0, 1e-6, 0.0], times=2) == [2]
    assert outliers([0.0, 0.0, 0.0], times=2) == []


def test_what_is_not_a_number_stands_out() -> None:
    assert outliers([1.0, np.nan, 1.0, np.inf], times=2) == [1, 3]
    assert outliers([np.nan, np.nan], times=2) == [0, 1]


def test_a_small_value_is_nothing_to_complain_of() -> None:
    assert outliers([1.0, 1.0, 1.01, 0.001], times=2) == []
