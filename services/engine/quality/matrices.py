"""Damage in weight matrices: each one, decoded as the kernels decode it, against the model's own numbers.

Two errors are asked of a matrix: the relative error of the whole in the Frobenius norm, and how far its worst weight
is off against what rounding explains. The second finds a single bad scale among thousands.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from services.engine.quality.outliers import outliers, usual
from services.engine.quality.subject import ROUNDING, KeptMatrix

MOST_ERROR = {"int8": 0.05, "rounded float16": 0.001}
"""Of a whole matrix, by form; 0 for forms that round nothing. Normally distributed weights have 0.007 in int8."""
SLACK = 1.001
"""Rounding is itself computed in float32."""
TIMES_USUAL = 2.0
ROWS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class MatrixError:
    """What was measured of a matrix."""

    place: str
    form: str
    error: float
    """Norm of the difference ÷ norm of what is wanted."""
    excess: float
    """The worst weight's error ÷ what rounding explains; for a form that rounds nothing, infinite for any error."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that is not as it should be."""

    place: str
    reason: str
    """A clause that follows the place and a colon."""


def measured(matrix: KeptMatrix) -> MatrixError:
    """Raises ValueError if the shapes differ."""
    if matrix.kept.shape != matrix.wanted.shape:
        raise ValueError("a matrix is kept in another shape")
    share = ROUNDING.get(matrix.form, 0.0)
    squares, wanted_squares, excess = 0.0, 0.0, 0.0
    for at in range(0, len(matrix.kept), ROWS_AT_ONCE):
        kept, wanted = matrix.kept[at : at + ROWS_AT_ONCE], matrix.wanted[at : at + ROWS_AT_ONCE]
        off = np.abs(kept - wanted)
        squares += float(np.square(off, dtype=np.float64).sum())
        wanted_squares += float(np.square(wanted, dtype=np.float64).sum())
        excess = _largest(excess, off.max(axis=1), share * np.abs(wanted).max(axis=1))
    return MatrixError(matrix.place, matrix.form, _ratio(squares**0.5, wanted_squares**0.5), excess)


def damaged(errors: Sequence[MatrixError]) -> list[Damage]:
    """In the order of the matrices. Each is judged by itself, and among those of its form."""
    by_form: dict[str, list[MatrixError]] = defaultdict(list)
    for each in errors:
        by_form[each.form].append(each)
    odd = {alike[at].place for alike in by_form.values() for at in outliers([e.error for e in alike], TIMES_USUAL)}
    usually = {form: usual([each.error for each in alike]) for form, alike in by_form.items()}
    return [
        Damage(each.place, f"its {each.form} weights are off by {each.error:.2%}, usual is {usually[each.form]:.2%}")
        for each in errors
        if each.place in odd or not _is_sound(each)
    ]


def _is_sound(each: MatrixError) -> bool:
    # So that what is not a number is not sound.
    return each.excess <= SLACK and each.error <= MOST_ERROR.get(each.form, 0.0)


def _largest(so_far: float, off: Iterable[float], explained: Iterable[float]) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = np.where(np.asarray(off) == 0, 0.0, np.asarray(off) / np.asarray(explained))
    return float(np.maximum(so_far, excess.max()))  # np.maximum keeps what is not a number


def _ratio(part: float, whole: float) -> float:
    return 0.0 if part == 0 else part / whole if whole else float("inf")
