"""Whether the beginning of a prompt is got from a store's cache or computed: whichever is predicted to take less time.

    fetching    fixed + per_block * blocks, as fetches over this way have gone     (`FetchPace`)
    computing   what these tokens add to steps at this context, as steps go now    (`StepCost`)

A way that was not used yet is taken to be slow, so that it is used at first only where that saves much.
"""

from dataclasses import dataclass, field

from services.core.step_cost import StepCost

WEIGHT = 0.3
"""Of the latest fetch."""
LEAST, MOST = 0.02, 20.0
"""A ratio beyond these says more about a hiccup than about the way."""
MOST_FRESH = 60.0
"""Seconds after which a way that went badly is given half the benefit of the doubt again, so that it is tried again."""


@dataclass(frozen=True, slots=True)
class FetchCost:
    """Seconds, none negative."""

    fixed: float
    per_block: float

    def of(self, blocks: int) -> float:
        return self.fixed + self.per_block * blocks


@dataclass(frozen=True, slots=True)
class KnownPrefix:
    """A store claims to hold the first `blocks` blocks of a prompt."""

    blocks: int = 0
    cost: FetchCost = field(default_factory=lambda: FetchCost(0.0, 0.0))


NOTHING_KNOWN = KnownPrefix()


def blocks_worth_fetching(known: KnownPrefix, most: int, hits: int, block_size: int, step: StepCost) -> int:
    """How many blocks behind the first `hits`, up to block `most`, are to be fetched: all that are known, or none."""
    blocks = min(known.blocks, most) - hits
    if blocks <= 0 or known.cost.of(blocks) >= step.chunk(blocks * block_size, hits * block_size):
        return 0
    return blocks


class FetchPace:
    """Follows what fetches over one way take, against a first guess."""

    def __init__(self, guess: FetchCost) -> None:
        self._guess = guess
        self._ratio = 1.0
        self._noted_at: float | None = None

    def cost(self, now: float) -> FetchCost:
        """As fetches go now; what was bad and is long ago counts for less and less."""
        ratio = self._ratio
        if self._noted_at is not None and ratio > 1.0:
            ratio = 1.0 + (ratio - 1.0) * 0.5 ** (max(now - self._noted_at, 0.0) / MOST_FRESH)
        return FetchCost(self._guess.fixed * ratio, self._guess.per_block * ratio)

    def note(self, blocks: int, seconds: float, now: float) -> None:
        """A fetch brought so many blocks; one that brought none was all in vain."""
        ratio = min(max(seconds / self._guess.of(blocks), LEAST), MOST) if blocks else MOST
        self._ratio += WEIGHT * (ratio - self._ratio)
        self._noted_at = now
