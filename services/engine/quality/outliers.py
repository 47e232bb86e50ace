"""Which of several errors stands out from the others. Pure."""

from collections.abc import Sequence

import numpy as np

Z_BOUND = 3.5
"""Of the modified z-score, as its authors recommend (Iglewicz and Hoaglin 1993)."""
_NORMAL = 0.6745
"""Median absolute deviation of a normal distribution with deviation 1."""


def usual(errors: Sequence[float]) -> float:
    """The median of those that are numbers; 0 if none is."""
    values = np.asarray(errors, np.float64)
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if finite.size else 0.0


def outliers(errors: Sequence[float], times: float) -> list[int]:
    """Places of those that are far from the median by the modified z-score and above `times` the median.

    The second condition is there because errors of like things are alike to the last digits, and then hardly any
    deviation is large for a z-score. What is not a number stands out.
    """
    values = np.asarray(errors, np.float64)
    odd = ~np.isfinite(values)
    median = usual(errors)
    deviation = usual(np.abs(values[~odd] - median).tolist())
    far = _NORMAL * (values - median) > Z_BOUND * deviation
    return [int(at) for at in np.flatnonzero(odd | (far & (values > times * median)))]
