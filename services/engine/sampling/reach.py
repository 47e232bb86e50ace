"""How far a prefix of a row's order reaches: (logit descending, id ascending), ended by a weight or a number of tokens.

Every filter of the sampler, and the draw itself, is this question. Whole bins are passed over; in the one where the
prefix ends, the tokens are parted by value again and again (a quickselect whose pivot is the middle of the range), so
nothing is ever sorted, and the work is proportional to the row whatever it looks like.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.engine.jit import inner
from services.engine.sampling.weights import Bins, Values, Weights

LOWEST = -3.5e38
"""Below every finite float32."""

Places = NDArray[np.int64]


class Row(NamedTuple):
    """Tokens in the order of their ids."""

    values: Values
    weights: Weights


class Goal(NamedTuple):
    """A prefix ends with the first token by which it weighs at least `mass` or has so many tokens."""

    mass: float
    tokens: int


class Reach(NamedTuple):
    """A prefix of the order."""

    last: int
    """Place of its last token; -1 if the goal was not reached, so that the prefix is all that has a weight."""
    mass: float
    tokens: int


@inner
def reach(row: Row, bins: Bins, goal: Goal) -> Reach:
    """The prefix that `goal` ends; all that has a weight if it is not reached. `bins` are those of `row`."""
    mass, count = 0.0, 0
    for step in range(len(bins.mass) - 1):
        held = bins.tokens[step]
        if held and (mass + bins.mass[step] >= goal.mass or count + held >= goal.tokens):
            return reach_within(row, _places(bins, step), goal, Reach(-1, mass, count))
        mass += bins.mass[step]
        count += held
    return Reach(-1, mass, count)


@inner
def reach_within(row: Row, places: Places, goal: Goal, before: Reach) -> Reach:
    """The same, where it is known that the prefix goes on from `before` and ends among `places`, which ascend."""
    mass, count = before.mass, before.tokens
    while True:
        low, high = _range(row.values, places)
        if low == high:
            break
        bottom = max(low, LOWEST)
        middle = bottom + (high - bottom) / 2
        upper, lower = _parted(row.values, places, middle)
        weight = 0.0
        for place in upper:
            weight += row.weights[place]
        if mass + weight >= goal.mass or count + len(upper) >= goal.tokens:
            places = upper
        else:
            places = lower
            mass += weight
            count += len(upper)
    # Equals are in order. Another order of summing may leave their sum a digit short of the goal: then it is the last.
    for place in places:
        mass += row.weights[place]
        count += 1
        if mass >= goal.mass or count >= goal.tokens:
            return Reach(place, mass, count)
    return Reach(places[-1], mass, count)


@inner
def _places(bins: Bins, step: int) -> Places:
    """Places of the tokens in one bin."""
    places = np.empty(bins.tokens[step], np.int64)
    found, at = 0, 0
    while found < len(places):
        if bins.of[at] == step:
            places[found] = at
            found += 1
        at += 1
    return places


@inner
def _range(values: Values, places: Places) -> tuple[float, float]:
    """In float64, in which the middle of two float32 numbers is below the higher one."""
    low = high = np.float64(values[places[0]])
    for place in places:
        low = min(low, np.float64(values[place]))
        high = max(high, np.float64(values[place]))
    return low, high


@inner
def _parted(values: Values, places: Places, middle: float) -> tuple[Places, Places]:
    """Those above `middle` and the others, each in order."""
    upper, lower = np.empty_like(places), np.empty_like(places)
    above = below = 0
    for place in places:
        if values[place] > middle:
            upper[above] = place
            above += 1
        else:
            lower[below] = place
            below += 1
    return upper[:above], lower[:below]
