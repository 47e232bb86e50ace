"""When each token of a run was known, and the measures that follow from it. Pure, and only the standard library.

A contender reports nothing but these times, so a rate means the same for all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any, Self

Measures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Trace:
    """One run of one workload. Raises ValueError if a request has no token or time runs backwards."""

    prompt_tokens: int
    """Of each request."""
    times: tuple[tuple[float, ...], ...]
    """`[requests][answer]`: seconds since the requests were handed over, all at once, at which a token was known."""
    tokens: tuple[tuple[int, ...], ...] = ()
    """`[requests][answer]` ids, where the contender tells them."""

    def __post_init__(self) -> None:
        if not self.times or not all(self.times):
            raise ValueError("every request of a run needs at least one token")
        for stream in self.times:
            if stream[0] <= 0 or any(later < earlier for earlier, later in pairwise(stream)):
                raise ValueError("the tokens of a request come one after another")

    @property
    def seconds(self) -> float:
        """Until the last token of all."""
        return max(stream[-1] for stream in self.times)

    @property
    def output_tokens_per_second(self) -> float:
        """All tokens of all answers over the whole run, prefill included."""
        return sum(len(stream) for stream in self.times) / self.seconds

    @property
    def mean_ttft(self) -> float:
        """Seconds to the first token, waiting included, averaged over requests."""
        return fmean(stream[0] for stream in self.times)

    @property
    def gaps(self) -> list[float]:
        """Seconds between neighbouring tokens, of all requests together."""
        return [late - early for stream in self.times for early, late in pairwise(stream)]

    @property
    def decode_tokens_per_second(self) -> float:
        """Tokens after the first over the time after the first; of one stream."""
        (stream,) = self.times
        return (len(stream) - 1) / (stream[-1] - stream[0])

    @property
    def prefill_tokens_per_second(self) -> float:
        """Prompt tokens over the time to the first token; of one stream."""
        (stream,) = self.times
        return self.prompt_tokens / stream[0]

    def as_json(self) -> dict[str, Any]:
        return {"prompt_tokens": self.prompt_tokens, "times": self.times, "tokens": self.tokens}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        return cls(
            prompt_tokens=int(fields["prompt_tokens"]),
            times=tuple(tuple(float(at) for at in stream) for stream in fields["times"]),
            tokens=tuple(tuple(int(token) for token in stream) for stream in fields["tokens"]),
        )


def measures(workload: str, trace: Trace) -> Measures:
    """What is compared on a workload, rates in tokens/s and times in seconds."""
    if workload == "W2":
        return {"tokens_per_second": trace.decode_tokens_per_second, "ttft": trace.mean_ttft}
    if workload == "W3":
        return {"tokens_per_second": trace.prefill_tokens_per_second, "ttft": trace.mean_ttft}
    return {
        "tokens_per_second": trace.output_tokens_per_second,
        "ttft": trace.mean_ttft,
        "itl_median": percentile(trace.gaps, 50),
        "itl_p99": percentile(trace.gaps, 99),
    }


def medians(runs: Sequence[Measures]) -> Measures:
    """Each measure's median over repetitions."""
    return {name: median(run[name] for run in runs) for name in runs[0]}


def percentile(values: Sequence[float], percent: float) -> float:
    """By linear interpolation between the two nearest ranks; 0 of nothing."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
