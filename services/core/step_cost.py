"""What an engine step costs, as a function of its chunks, and how long a chunk may be within a time budget.

    seconds = fixed + per_token · Σ tokens + per_token_context · Σ tokens · context + per_context · Σ context

A chunk's `context` is every position its last row attends to, the chunk itself included. The third term is the scores,
the fourth the reading of the cache, which a long chunk shares among its rows and a decode row pays alone. The
coefficients come from a warm-up on the machine that serves; this module measures nothing.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Self

Sample = tuple[float, float, float, float]
"""Tokens in the step, sum of tokens times context, sum of contexts, seconds it took (more than 0)."""

_COLUMNS = 4

_SINGULAR = 1e-12
"""A pivot below this, in columns scaled to at most 1, is rounding."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Coefficients in seconds, none negative."""

    fixed: float
    per_token: float
    per_token_context: float
    per_context: float = 0.0

    def of(self, chunks: Iterable[tuple[int, int]]) -> float:
        """Seconds for a step of chunks, each (tokens, positions cached before it)."""
        return self.fixed + sum(self.chunk(tokens, cached) for tokens, cached in chunks)

    def chunk(self, tokens: int, cached: int) -> float:
        """Seconds that a chunk of `tokens` behind `cached` positions adds to a step."""
        context = cached + tokens
        return tokens * (self.per_token + self.per_token_context * context) + self.per_context * context

    def scaled(self, factor: float) -> Self:
        """A machine that takes `factor` times as long."""
        return type(self)(
            self.fixed * factor, self.per_token * factor, self.per_token_context * factor, self.per_context * factor
        )

    def longest_chunk(self, budget: float, cached: int, already: float, most: int) -> int:
        """Most tokens, in 1..`most`, that a step may take on behind `cached` positions and stay in its budget.

        `already` is the step without the chunk (`of` its other chunks); 1 if not even one token fits.
        """
        lengths = range(1, most + 1)
        return max(1, bisect_right(lengths, budget, key=lambda tokens: already + self.chunk(tokens, cached)))

    @classmethod
    def fit(cls, samples: Sequence[Sample]) -> Self:
        """Least squares with no coefficient below 0, so that a longer step never looks cheaper.

        Residuals are relative, for a short step must be met as closely as a long one. The best non-negative solution
        is the best plain one on some subset of the columns (Lawson and Hanson, "Solving Least Squares Problems", 1974,
        ch. 23); with four columns all sixteen subsets are tried. Raises ValueError without samples.
        """
        if not samples:
            raise ValueError("a cost is fitted to at least one sample")
        weighted = [tuple(term / took for term in (1.0, *terms)) for *terms, took in samples]
        scale = [max(row[column] for row in weighted) or 1.0 for column in range(_COLUMNS)]
        rows = [tuple(term / width for term, width in zip(row, scale, strict=True)) for row in weighted]
        ones = [1.0] * len(rows)
        subsets = [columns for size in range(_COLUMNS + 1) for columns in combinations(range(_COLUMNS), size)]
        solutions = [solved for columns in subsets if (solved := _solution(rows, ones, columns)) is not None]
        best = min(solutions, key=lambda solution: _error(rows, ones, solution))
        return cls(*(coefficient / width for coefficient, width in zip(best, scale, strict=True)))


def _error(rows: Sequence[tuple[float, ...]], seconds: Sequence[float], solution: Sequence[float]) -> float:
    """Sum of squared residuals."""
    return sum((_dot(row, solution) - took) ** 2 for row, took in zip(rows, seconds, strict=True))


def _solution(
    rows: Sequence[tuple[float, ...]], seconds: Sequence[float], columns: tuple[int, ...]
) -> tuple[float, ...] | None:
    """All coefficients, those outside `columns` 0; None if undetermined or negative."""
    picked = [[row[column] for column in columns] for row in rows]
    across = list(zip(*picked, strict=True))
    matrix = [[_dot(left, right) for right in across] + [_dot(left, seconds)] for left in across]
    solved = _eliminate(matrix)
    if solved is None or any(coefficient < 0 for coefficient in solved):
        return None
    coefficients = dict(zip(columns, solved, strict=True))
    return tuple(coefficients.get(column, 0.0) for column in range(_COLUMNS))


def _eliminate(matrix: list[list[float]]) -> list[float] | None:
    """Gauss-Jordan with row pivoting on an augmented square matrix; None if it is singular."""
    size = len(matrix)
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(matrix[row][column]))
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        if abs(matrix[column][column]) < _SINGULAR:
            return None
        for row in range(size):
            if row != column:
                factor = matrix[row][column] / matrix[column][column]
                matrix[row] = [a - factor * b for a, b in zip(matrix[row], matrix[column], strict=True)]
    return [matrix[row][size] / matrix[row][row] for row in range(size)]


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))
