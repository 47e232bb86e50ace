"""What became of a simulated trace: each request's times, and the figures made of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.simulation.gaps import seconds_of
from services.simulation.profile import Objective

PERCENTILES = (50, 90, 95, 99)


@dataclass(slots=True)
class Outcome:
    """One request; seconds."""

    arrived: float
    prompt: int
    answer: int
    placed: float = -1.0
    first: float = -1.0
    ended: float = -1.0
    cached: int = 0
    """Tokens of the prompt that were not computed."""
    is_split: bool = False
    gaps: int = 0
    long_gaps: tuple[int, ...] = ()
    """Gaps longer than each limit."""

    @property
    def ttft(self) -> float:
        return self.first - self.arrived

    @property
    def itl(self) -> float:
        """Mean seconds between tokens; 0 for an answer of one."""
        return (self.ended - self.first) / (self.answer - 1) if self.answer > 1 else 0.0

    def meets(self, ttft: float, limit: int) -> bool:
        """In time with its first token, and with nine in ten of the others by the limit of this index."""
        is_steady = not self.gaps or self.long_gaps[limit] <= 0.1 * self.gaps
        return self.ttft <= ttft and is_steady


@dataclass(frozen=True, slots=True)
class Run:
    """A trace under one policy at one rate."""

    policy: str
    outcomes: Sequence[Outcome]
    gap_bins: Mapping[int, int]
    limits: tuple[float, ...]
    busy: Mapping[str, float]
    """Share of the time that each pool computed."""


Figures = dict[str, object]


def figures(run: Run, objective: Objective) -> Figures:
    """For people and machines. Goodput is requests per second that meet the objective, over the time of arrivals."""
    ttfts = sorted(each.ttft for each in run.outcomes)
    itls = sorted(each.itl for each in run.outcomes if each.answer > 1)
    span = max(run.outcomes[-1].arrived - run.outcomes[0].arrived, 1e-9)
    good = {
        f"{limit:g}": sum(each.meets(objective.ttft, at) for each in run.outcomes) / span
        for at, limit in enumerate(run.limits)
    }
    return {
        "requests": len(run.outcomes),
        "arrivals_per_second": len(run.outcomes) / span,
        "mean_ttft_seconds": mean(ttfts),
        "ttft_percentiles": {f"p{each}": percentile(ttfts, each) for each in PERCENTILES},
        "mean_itl_seconds": mean(itls),
        "mean_answer_seconds": mean([each.ended - each.arrived for each in run.outcomes]),
        "itl_percentiles": {f"p{each}": percentile(itls, each) for each in PERCENTILES},
        "gap_percentiles": {f"p{each}": gap_percentile(run.gap_bins, each) for each in PERCENTILES},
        "goodput": good[f"{objective.itl:g}"],
        "goodput_by_itl_limit": good,
        "cache_hit_rate": sum(each.cached for each in run.outcomes) / max(sum(each.prompt for each in run.outcomes), 1),
        "split_share": sum(each.is_split for each in run.outcomes) / max(len(run.outcomes), 1),
        "busy": dict(run.busy),
    }


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def percentile(ordered: Sequence[float], share: float) -> float:
    """By the nearest rank; 0 of nothing."""
    return ordered[min(int(len(ordered) * share / 100), len(ordered) - 1)] if ordered else 0.0


def gap_percentile(bins: Mapping[int, int], share: float) -> float:
    """Within a twentieth of the gap's length; 0 of nothing."""
    wanted = sum(bins.values()) * share / 100
    for place in sorted(bins):
        wanted -= bins[place]
        if wanted <= 0:
            return seconds_of(place)
    return 0.0
