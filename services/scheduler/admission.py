"""The queue: bounded by traffic class, shared fairly, and never silent about a request whose waiting is over.

Classes share what is given out by their weights, clients share within a class, and each client's own requests go by
priority with ageing (`lane.py`). When the queue is full, somebody gives way (`shedding.py`). Pure: time is an argument,
and whether there is room is the caller's to say:

    for request in queue.candidates(now):   who is next, as long as it is taken or there is no room for it
        queue.take(request.key, work)       it got a place
        queue.stalled(request.key, now)     there are workers for it, none of them with room now
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from services.core.errors import DeadlinePassed, DiptychError, Overloaded, QueueTimeout
from services.core.ids import RequestKey
from services.core.request import Request
from services.scheduler.arrivals import Arrivals
from services.scheduler.classes import Classes, TrafficClass
from services.scheduler.drain import Drain
from services.scheduler.fair_share import FairShare
from services.scheduler.flow import Flow
from services.scheduler.foresight import Foresight
from services.scheduler.lane import Lane, LaneName, Waiting
from services.scheduler.ranking import Ranking
from services.scheduler.shedding import Shedding

RETRY_AFTER_SECONDS = 1.0
"""Said while nothing is known of how fast places come free."""
MOST_RETRY_AFTER_SECONDS = 60.0
HEAD_START = 60.0
"""Seconds that a level of priority is worth among a client's own requests."""


class Queue:
    """Requests without a place."""

    def __init__(
        self,
        max_queue: int,
        queue_timeout: float,
        classes: Sequence[TrafficClass] = (),
        gathering: float = 0.0,
        patience: float = 1.0,
    ) -> None:
        """`gathering`: seconds that the first request to come waits for others, so that all are placed in order.

        `patience`: seconds for which others may pass a head for which there is no room; then room is left for it.
        """
        self.classes = Classes(classes)
        self.drain = Drain()
        self.arrivals = Arrivals()
        self.foresight = Foresight()
        self.capacity = 0
        """Places there are in the cluster, 0 while unknown; the owner keeps it up to date."""
        self._queue_timeout = queue_timeout
        self._gathering = gathering
        self._patience = patience
        self._opens_at: float | None = None
        """When gathering ends, while it goes on."""
        self._waiting: dict[RequestKey, Waiting] = {}
        self._lanes: dict[LaneName, Lane] = {}
        self._shares: FairShare[LaneName] = FairShare()
        self._ends: Ranking[RequestKey] = Ranking()
        self._gave_way: list[tuple[Request, DiptychError]] = []
        self._counts: Counter[str] = Counter()
        """Waiting requests by class."""
        self._running: Counter[str] = Counter()
        self._arrivals = 0
        self._flow = Flow()
        self._shedding = Shedding(self.classes, self._lanes, self._counts, self._waiting, max_queue)

    def __len__(self) -> int:
        return len(self._waiting)

    # --- in

    def push(self, request: Request, now: float, model: str = "") -> float:
        """A new request for workers of `model`; returns when its waiting ends.

        Raises Overloaded when there is no room to wait: better told now than made to wait. Another request may have to
        give way to it instead, and is then among the `expired`.
        """
        traffic = self.classes.of(request.traffic_class)
        rank = now - request.priority * HEAD_START
        self._make_room(request, traffic, rank, now)
        self.arrivals.came(traffic.level, now)
        if not self._waiting and self._gathering:
            self._opens_at = now + self._gathering
        return self._insert(request, (traffic.name, model), rank, now + self.timeout_of(traffic), is_returned=False)

    def push_back(self, request: Request, now: float, until: float | None, model: str = "") -> float:
        """One that had a place and lost it: before all of its class that had none, and never refused for want of room.

        `until` is when its waiting ends, if it has waited before and nobody has begun it since.
        """
        traffic = self.classes.of(request.traffic_class)
        until = until or now + self.timeout_of(traffic)
        return self._insert(request, (traffic.name, model), -float(request.priority), until, is_returned=True)

    # --- out

    def candidates(self, now: float) -> Iterator[Request]:
        """Who may have a place, in order; one that is neither taken nor removed closes its lane for this round.

        A class at its share of the cluster is passed by. A head that has been without room for longer than the patience
        lets nobody pass who might use the same workers.
        """
        if self._opens_at is not None and now < self._opens_at:
            return
        self._opens_at = None
        closed: set[LaneName] = set()
        while (name := self._next_lane(now, closed)) is not None:
            head = self._lanes[name].head()
            assert head is not None
            yield self._waiting[head].request
            lane = self._lanes.get(name)
            if lane is not None and lane.head() == head:
                closed.add(name)

    def take(self, key: RequestKey, work: float | None = None) -> Request:
        """It gets a place; its client and class are charged with `work` tokens."""
        waiting = self._waiting[key]
        lane = self._lanes[waiting.lane]
        if work is None:
            work = float(len(waiting.request.tokens) + waiting.request.stopping.max_tokens)
        lane.take(waiting, work)
        self._flow.note(waiting.lane, lane.traffic.weight)
        if not waiting.is_returned:
            self._shares.charge(waiting.lane, work / lane.traffic.weight)
        self._forget(waiting)
        return waiting.request

    def stalled(self, key: RequestKey, now: float) -> None:
        """A head has workers, none with room for it now."""
        lane = self._lanes[self._waiting[key].lane]
        if lane.stalled_since is None:
            lane.stalled_since = now

    def head(self) -> Request | None:
        """Who is next, at whatever time."""
        return next(self.candidates(math.inf), None)

    def pop(self) -> Request:
        """Takes the head. ValueError if there is none."""
        if (head := self.head()) is None:
            raise ValueError("nobody may have a place")
        return self.take(head.key)

    def remove(self, key: RequestKey) -> bool:
        """The client left while waiting."""
        if (waiting := self._waiting.get(key)) is None:
            return False
        self._lanes[waiting.lane].drop(waiting)
        self._forget(waiting)
        return True

    def expired(self, now: float) -> list[tuple[Request, DiptychError]]:
        """Takes out those whose time is up, each with what to tell it, and those who gave way."""
        over, self._gave_way = self._gave_way, []
        while (key := self._ends.first()) is not None and self._waiting[key].until <= now:
            request = self._waiting[key].request
            self.remove(key)
            over.append((request, self._verdict(request, now)))
        return over

    def next_expiry(self) -> float | None:
        """When there is something to do, if nothing else happens: time is up for one, or gathering is over."""
        if (key := self._ends.first()) is None:
            return None
        until = self._waiting[key].until
        return until if self._opens_at is None else min(until, self._opens_at)

    # --- what is known

    def timeout_of(self, traffic: TrafficClass) -> float:
        """Seconds that a request of a class may wait."""
        return traffic.queue_timeout or self._queue_timeout

    def note_running(self, traffic_class: str, change: int) -> None:
        """So many more, or fewer, requests of a class have places."""
        self._running[self.classes.of(traffic_class).name] += change

    def counts(self) -> list[tuple[str, int, int]]:
        """(class, running, waiting) of every class."""
        return [(each.name, self._running[each.name], self._counts[each.name]) for each in self.classes]

    def position(self, request: Request, model: str = "") -> int:
        """About the place in the order that it would have if it came now, 1 being the next to be placed.

        Its lane is taken to get the share of places that it has had of late, or that its weight gives it if that is
        more: what waits in other lanes says little of what will come and go before it. While places are free nobody
        passes.
        """
        if len(self) < self.capacity - self.drain.running:
            return len(self) + 1
        traffic = self.classes.of(request.traffic_class)
        name = (traffic.name, model)
        own = 1
        if (lane := self._lanes.get(name)) is not None:
            # Until its turn comes, every other client has had as many turns as it.
            turns = lane.waiting_of(request.client) + 1
            own = min(len(lane) + 1, turns * (lane.num_clients + (turns == 1)))
        return math.ceil(own / self._flow.share(name, traffic.weight, self._lanes))

    def retry_after(self, position: int, now: float) -> float:
        """Seconds until whoever is at this position would have a place."""
        wait = self.drain.wait(position, self.capacity, now) if self.drain.stay else RETRY_AFTER_SECONDS
        return min(max(wait, 0.1), MOST_RETRY_AFTER_SECONDS)

    # --- private

    def _insert(self, request: Request, lane_name: LaneName, rank: float, until: float, *, is_returned: bool) -> float:
        self._arrivals += 1
        if request.deadline is not None:
            until = min(until, request.deadline)
        waiting = Waiting(request, lane_name, (rank, self._arrivals), until, is_returned)
        self._waiting[request.key] = waiting
        self._ends.put(request.key, (until, self._arrivals))
        if (lane := self._lanes.get(lane_name)) is None:
            lane = self._lanes[lane_name] = Lane(self.classes.of(lane_name[0]))
        lane.add(waiting)
        self._shares.join(lane_name)
        self._counts[lane_name[0]] += 1
        return until

    def _forget(self, waiting: Waiting) -> None:
        """It has left its lane."""
        del self._waiting[waiting.request.key]
        self._ends.discard(waiting.request.key)
        self._counts[waiting.lane[0]] -= 1
        if not self._lanes[waiting.lane]:
            self._shares.leave(waiting.lane)
            del self._lanes[waiting.lane]

    def _next_lane(self, now: float, closed: set[LaneName]) -> LaneName | None:
        holding: list[LaneName] = []
        for name in self._shares.ordered():
            lane = self._lanes[name]
            if name in closed:
                if lane.stalled_since is not None and now - lane.stalled_since >= self._patience:
                    holding.append(name)
            elif self._is_at_its_share(lane.traffic):
                self._shares.renew(name)
            elif not any(self._may_meet(name, other) for other in holding):
                return name
        return None

    def _is_at_its_share(self, traffic: TrafficClass) -> bool:
        if traffic.max_running >= 1 or not self.capacity:
            return False
        return self._running[traffic.name] >= max(math.floor(traffic.max_running * self.capacity), 1)

    def _may_meet(self, one: LaneName, other: LaneName) -> bool:
        same_model = one[1] == other[1] or not one[1] or not other[1]
        return same_model and self._lanes[one].traffic.overlaps(self._lanes[other].traffic)

    def _make_room(self, request: Request, traffic: TrafficClass, rank: float, now: float) -> None:
        """Raises Overloaded if it is the newcomer that has to go."""
        if self._shedding.has_room(traffic):
            return
        key = self._shedding.gives_way(request, traffic, rank)
        if key is None:
            raise Overloaded("the queue is full", retry_after=self.retry_after(self._counts[traffic.name], now))
        gone = self._waiting[key]
        self.remove(key)
        retry_after = self.retry_after(self._counts[gone.lane[0]], now)
        self._gave_way.append((gone.request, Overloaded("gave way to what goes before it", retry_after=retry_after)))

    def _verdict(self, request: Request, now: float) -> DiptychError:
        if request.deadline is not None and request.deadline <= now:
            return DeadlinePassed("the deadline passed while the request was queued")
        retry_after = self.retry_after(self.position(request), now)
        return QueueTimeout("no place came free in time", retry_after=retry_after)
