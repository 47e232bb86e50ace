"""Which lanes the latest places went to, and which share of the next ones a lane may reckon with. Pure."""

from collections.abc import Mapping

from services.scheduler.lane import Lane, LaneName

_MEMORY = 0.02
"""Weight of the latest place."""
_LEAST = 0.001
"""A share below this is forgotten."""


class Flow:
    """Decaying shares of the places given out; with the weights of who had them."""

    def __init__(self) -> None:
        self._shares: dict[LaneName, float] = {}
        self._weights: dict[LaneName, float] = {}

    def note(self, lane: LaneName, weight: float) -> None:
        """A place went to a lane."""
        kept = {name: share * (1 - _MEMORY) for name, share in self._shares.items() if share > _LEAST}
        kept[lane] = kept.get(lane, 0.0) + (_MEMORY if self._shares else 1.0)
        self._shares = kept
        self._weights = {name: self._weights.get(name, weight) for name in kept}

    def share(self, lane: LaneName, weight: float, waiting: Mapping[LaneName, Lane]) -> float:
        """Above 0, at most 1: what it has had of late, or what its weight gives it among all that are active."""
        weights = self._weights | {name: each.traffic.weight for name, each in waiting.items()} | {lane: weight}
        return min(max(self._shares.get(lane, 0.0), weight / sum(weights.values())), 1.0)
