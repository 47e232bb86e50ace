"""The segment ledger: where a request's time went, as contiguous segments that sum to the whole.

Each process keeps one `Ledger` per request on its own monotonic clock and is in exactly one segment at any time.
When a callee answers, its own segments replace the caller's wait, and what is left of the wait is the hop:

    caller  |- tokenize -|------------- wait ---------------|- stream -|
    callee               .  |- queue -|----- compute -----| .
    result  |- tokenize -|hop|- queue -|----- compute -----|- stream -|     (hop = wait - what the callee accounts for)

So segments are contiguous, disjoint and not negative by construction, and no two clocks are ever compared.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Segment:
    """A named share of a request's time."""

    name: str
    seconds: float


@dataclass(slots=True)
class Ledger:
    """Accounts for all time from `since`; `now` never goes back."""

    since: float
    """The moment up to which time is accounted for."""
    _segments: list[Segment] = field(default_factory=list)

    def close(self, name: str, now: float) -> None:
        """Everything since the last closing was `name`."""
        self._append(name, now - self.since)
        self.since = max(now, self.since)

    def absorb(self, hop: str, callee: Iterable[Segment], now: float) -> None:
        """Everything since the last closing was a call: the callee's segments, and `hop` for what they leave over."""
        segments = list(callee)
        left = now - self.since - sum(segment.seconds for segment in segments)
        self._append(hop, left)
        for segment in segments:
            self._append(segment.name, segment.seconds)
        self.since = max(now, self.since)

    def take(self) -> tuple[Segment, ...]:
        """Segments closed since the last `take`; the receiver absorbs them."""
        taken = tuple(self._segments)
        self._segments.clear()
        return taken

    def _append(self, name: str, seconds: float) -> None:
        """Neighbours of one name are one segment; a negative share (a clock's last digit) is none."""
        seconds = max(seconds, 0.0)
        if self._segments and self._segments[-1].name == name:
            seconds += self._segments.pop().seconds
        self._segments.append(Segment(name, seconds))


def merged(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """One segment per name, in order of first appearance: the form people read."""
    total: dict[str, float] = {}
    for segment in segments:
        total[segment.name] = total.get(segment.name, 0.0) + segment.seconds
    return tuple(Segment(name, seconds) for name, seconds in total.items())
