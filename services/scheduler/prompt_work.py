"""How much work prompts are, of late, by what this scheduler placed: how long one takes, and how busy a pool is so.

From it follows what a prompt costs those who will stand behind it. A worker with `wait` seconds of work before it is
next idle after wait / (1 - r), where r is the share of time for which it is busy (the busy period of M/G/1, Kleinrock,
"Queueing Systems" 1, 1975); meanwhile r / mean prompts come a second, and each waits for this one too. Pure.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial

from services.scheduler.fading import Fading

GAIN = 0.02
MEMORY_SECONDS = 60.0
MOST_BUSY = 0.9
"""A pool that is busier counts as if it were so busy: nine come for each that is there."""


@dataclass(slots=True)
class PromptWork:
    """Times are on the scheduler's clock, in seconds."""

    mean: float = 0.0
    """Seconds that a prompt takes the worker that computes it; 0 before any was placed."""
    _placed: defaultdict[str, Fading] = field(default_factory=partial(defaultdict, partial(Fading, MEMORY_SECONDS)))
    """By service: seconds of prompts."""

    def note(self, service: str, seconds: float, now: float) -> None:
        """A prompt was given to a worker of this service."""
        self.mean += (GAIN if self.mean else 1.0) * (seconds - self.mean)
        self._placed[service].add(seconds, now)

    def busy_share(self, service: str, workers: int, now: float) -> float:
        """The share of time for which `workers` of a service compute prompts."""
        return self._placed[service].per_second(now) / max(workers, 1)

    def followers_per_second(self, service: str, workers: int, now: float) -> float:
        """For each second that a prompt waits before it is begun, how many will come behind it before its worker is
        idle."""
        if not self.mean:
            return 0.0
        busy = min(self.busy_share(service, workers, now), MOST_BUSY)
        return busy / (1 - busy) / self.mean
