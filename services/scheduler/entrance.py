"""The way to a place: refused at arrival, queued, placed in order, counted by class. Pure.

Joins the queue with what the cluster view says of room, and keeps what admission learns: how long places are kept, how
long answers are, who was turned away.
"""

from collections import Counter
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from services.core.blocks import BlockNames
from services.core.errors import DiptychError, Overloaded, QueueTimeout
from services.core.request import Request
from services.scheduler.admission import Queue
from services.scheduler.asking import Asking, MayUse, Rules
from services.scheduler.cluster_view import ClusterView
from services.scheduler.rejection import check, usable
from services.scheduler.work import Expected, work_of

CAPACITY_SECONDS = 0.2
"""For so long the number of places in the cluster is not looked up again."""


class Entered(NamedTuple):
    """What is known of a request that was let in."""

    until: float
    """When its waiting ends."""
    expected: float
    """Seconds until its first token; 0 where nobody asked."""


class Entrance:
    """One per scheduler."""

    def __init__(self, queue: Queue, view: ClusterView) -> None:
        self.queue = queue
        self._view = view
        self._expected = Expected()
        self._shed: Counter[str] = Counter()
        self._looked_at: float | None = None

    def class_of(self, request: Request) -> str:
        """The name of the class that it is treated as."""
        return self.queue.classes.of(request.traffic_class).name

    def level_of(self, request: Request) -> int:
        """How important its class is."""
        return self.queue.classes.of(request.traffic_class).level

    def enter(self, request: Request, names: BlockNames, model: str, now: float) -> Entered:
        """Queues a new request. Raises NeverFits or Overloaded."""
        self._look(now)
        asking = Asking(request, self._view, names, now, Rules(may_use=self.restriction(request)))
        expected = check(asking, self.queue, model)
        return Entered(self.queue.push(request, now, model), expected)

    def first_token(self, request: Request, expected: float, took: float) -> None:
        """Seconds from a request's arrival to its first token, beside what was expected then."""
        self.queue.foresight.seen(self.class_of(request), expected, took)

    def candidates(self, now: float) -> Iterator[Request]:
        """Who may have a place, in order (see `Queue.candidates`)."""
        if len(self.queue):
            self._look(now)
        return self.queue.candidates(now)

    def take(self, request: Request, cached_tokens: int) -> None:
        """It has a place, and so many tokens of its prompt need not be computed."""
        self.queue.take(request.key, work_of(request, cached_tokens, self._expected))

    def restriction(self, request: Request) -> MayUse | None:
        """Which workers its class may use, by name; None: all."""
        traffic = self.queue.classes.of(request.traffic_class)
        return traffic.may_use if traffic.workers else None

    def pass_over(self, request: Request, model: str, now: float) -> None:
        """There is no room for it now; if there are workers for it, room may be kept for it."""
        traffic = self.queue.classes.of(request.traffic_class)
        if next(usable(self._view, "decode", traffic, model), None) is not None:
            self.queue.stalled(request.key, now)

    def began(self, holder: Hashable, request: Request, now: float) -> None:
        """Whoever holds the request has a place."""
        self.queue.drain.began(holder, now)
        self.queue.note_running(request.traffic_class, 1)

    def left(self, holder: Hashable, request: Request, now: float, *, is_over: bool) -> None:
        """It has none any more; `is_over` unless it only lost that one."""
        if is_over:
            self.queue.drain.ended(holder, now)
        else:
            self.queue.drain.forget(holder)
        self.queue.note_running(request.traffic_class, -1)

    def answered(self, request: Request, tokens: int) -> None:
        """Its answer is complete."""
        self._expected.ended(request.client, tokens)

    def is_shed(self, request: Request, error: DiptychError | None) -> bool:
        """Whether a request that ended so was turned away for want of room; it is then counted."""
        is_shed = isinstance(error, Overloaded | QueueTimeout)
        if is_shed:
            self._shed[self.class_of(request)] += 1
        return is_shed

    def loads(self) -> list[tuple[str, int, int, int]]:
        """(class, running, waiting, turned away) of every class."""
        return [(name, running, waiting, self._shed[name]) for name, running, waiting in self.queue.counts()]

    def _look(self, now: float) -> None:
        """Places that are this scheduler's to give: those of decode workers, less what other schedulers have there."""
        if self._looked_at is None or now - self._looked_at >= CAPACITY_SECONDS:
            self._looked_at = now
            decode = (
                worker for worker in self._view.workers.values() if worker.service == "decode" and worker.is_ready
            )
            others = self._view.others
            self.queue.capacity = sum(max(each.max_running - others.get(each.address, 0), 0) for each in decode)
