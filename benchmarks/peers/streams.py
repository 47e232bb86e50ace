"""What a client sees of streamed answers, and the measures that follow. Pure, and only the standard library.

A server sends text, not tokens, and may send several tokens' text at once: rates come from the usage it reports, gaps
from when text arrived.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from peers.trace import Measures, percentile

PERCENTS = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Stream:
    """One answer. Raises ValueError if nothing arrived."""

    asked: float
    """Seconds on the client's clock at which the request was sent."""
    arrivals: tuple[float, ...]
    """When each piece of text arrived, on the same clock."""
    tokens: int
    """Of the answer, as the server counts; 0 if the client left before it was told."""

    def __post_init__(self) -> None:
        if not self.arrivals:
            raise ValueError("a stream without any text")

    @property
    def ttft(self) -> float:
        return self.arrivals[0] - self.asked

    @property
    def gaps(self) -> list[float]:
        return [late - early for early, late in pairwise(self.arrivals)]

    def gaps_between(self, begin: float, end: float) -> list[float]:
        """Gaps that a moment between `begin` and `end` is in: an arrival after `end` may be the one that waited."""
        pairs = pairwise(self.arrivals)
        return [late - early for early, late in pairs if late > begin and early < end]


def served_measures(workload: str, streams: Sequence[Stream]) -> Measures:
    """As `trace.measures`, of what came through a server."""
    if workload == "W2":
        (stream,) = streams
        rate = (stream.tokens - 1) / (stream.arrivals[-1] - stream.arrivals[0])
    else:
        last = max(stream.arrivals[-1] for stream in streams)
        rate = sum(stream.tokens for stream in streams) / (last - min(stream.asked for stream in streams))
    gaps = [gap for stream in streams for gap in stream.gaps]
    return {
        "tokens_per_second": rate,
        "ttft": fmean(stream.ttft for stream in streams),
        "itl_median": percentile(gaps, 50),
        "itl_p99": percentile(gaps, 99),
    }


def gap_percentiles(gaps: Sequence[float]) -> dict[str, float]:
    """Seconds by name (`p50`, ..., `most`), with how many gaps there are."""
    found = {f"p{percent}": percentile(gaps, percent) for percent in PERCENTS}
    return {**found, "most": max(gaps, default=0.0), "gaps": float(len(gaps))}
