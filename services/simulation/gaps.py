"""Gaps between tokens, counted without looking at each: per worker, how many steps were longer than each limit."""

import math

BINS_PER_DOUBLING = 8


class Gaps:
    """A row that is in every step has had, between two looks, as many long gaps as the worker had long steps."""

    def __init__(self, limits: tuple[float, ...]) -> None:
        self._limits = limits
        self._steps = 0
        self._long = [0] * len(limits)
        self.bins: dict[int, int] = {}
        """Gaps of all rows by length."""

    @property
    def counts(self) -> tuple[int, tuple[int, ...]]:
        """(steps, steps longer than each limit) so far."""
        return self._steps, tuple(self._long)

    def note(self, first: float, growth: float, steps: int, rows: int) -> None:
        """So many steps, the first `first` seconds long and each next one `growth` longer, with `rows` in each."""
        self._steps += steps
        for at, limit in enumerate(self._limits):
            if first > limit:
                self._long[at] += steps
            elif first + growth * (steps - 1) > limit:
                self._long[at] += steps - 1 - math.floor((limit - first) / growth)
        place = bin_of(first + growth * (steps - 1) / 2)
        self.bins[place] = self.bins.get(place, 0) + steps * rows


def bin_of(seconds: float) -> int:
    return round(BINS_PER_DOUBLING * math.log2(max(seconds, 1e-9)))


def seconds_of(place: int) -> float:
    """The middle of a bin."""
    return float(2.0 ** (place / BINS_PER_DOUBLING))
