"""Traffic classes: what an operator sets for each kind of request. Pure data.

A request without a class, or of one that is not known here, is of the class `default`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class TrafficClass:
    """ValueError for one that nothing could ever pass through."""

    name: str = DEFAULT
    weight: float = 1.0
    """Its share of what is given out while several classes wait."""
    level: int = 0
    """Importance: under overload the lowest gives way first, in the queue, and on a worker by
    `BatchLimits.head_start` a level."""
    max_queue: int = 0
    """Most requests of it that wait; 0: as many as wait in all."""
    max_running: float = 1.0
    """The share of the cluster's places that it may have at a time."""
    queue_timeout: float = 0.0
    """Seconds after which one that waits is told to come back later; 0: the scheduler's."""
    workers: tuple[str, ...] = ()
    """Names of the workers it may use, with `*` for any characters; none: all."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Weights of clients by their digest, where they are not 1."""
    max_ttft: float = 0.0
    """Seconds to the first token beyond which no more are taken: who is expected to wait longer, for a place and then
    for the prompts before its own, is refused. 0: no such refusal."""
    max_itl: float = 0.0
    """Seconds from one token to the next beyond which no more are taken: whoever comes is refused if the decode workers
    are expected to be slower when its prompt is computed. 0: no such refusal."""

    def __post_init__(self) -> None:
        if not (self.weight > 0 and 0 < self.max_running <= 1):
            raise ValueError("weight must be above 0, max_running above 0 and at most 1")
        if min(self.max_queue, self.queue_timeout, self.max_ttft, self.max_itl) < 0:
            raise ValueError("max_queue, queue_timeout, max_ttft and max_itl must not be negative")
        if not all(share > 0 for share in self.shares.values()):
            raise ValueError("shares of clients must be above 0")

    def share_of(self, client: str) -> float:
        return self.shares.get(client, 1.0)

    def overlaps(self, other: "TrafficClass") -> bool:
        """Whether some worker is for both, as far as the patterns tell by themselves."""
        if not self.workers or not other.workers:
            return True
        return any(self.may_use(name) for name in other.workers) or any(other.may_use(name) for name in self.workers)

    def may_use(self, worker: str) -> bool:
        """Whether it may use the worker of this name."""
        return not self.workers or any(fnmatchcase(worker, pattern) for pattern in self.workers)


class Classes:
    """By name; the default class is always among them."""

    def __init__(self, classes: Sequence[TrafficClass] = ()) -> None:
        self._classes = {each.name: each for each in (TrafficClass(), *classes)}

    def __iter__(self) -> Iterator[TrafficClass]:
        return iter(self._classes.values())

    def of(self, name: str) -> TrafficClass:
        return self._classes.get(name) or self._classes[DEFAULT]
