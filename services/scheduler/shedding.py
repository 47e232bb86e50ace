"""Who gives way when the queue is full: the least important class, and in it whoever has the most waiting.

So the burst of one client, or of one class, costs itself and nobody else. One that had a place and lost it never gives
way.
"""

from collections.abc import Iterable, Mapping

from services.core.ids import RequestKey
from services.core.request import Request
from services.scheduler.classes import Classes, TrafficClass
from services.scheduler.lane import Lane, LaneName, Waiting

Last = tuple[float, RequestKey]
"""The most waiting requests that a client has for its share, and the last of these in rank."""


class Shedding:
    """Looks at the queue's own books and changes nothing."""

    def __init__(
        self,
        classes: Classes,
        lanes: Mapping[LaneName, Lane],
        counts: Mapping[str, int],
        waiting: Mapping[RequestKey, Waiting],
        max_queue: int,
    ) -> None:
        """`counts` are waiting requests by class."""
        self._classes = classes
        self._lanes = lanes
        self._counts = counts
        self._waiting = waiting
        self._max_queue = max_queue

    def has_room(self, traffic: TrafficClass) -> bool:
        """Whether one more of this class may wait and nobody has to give way."""
        return not self._is_full(traffic) and len(self._waiting) < self._max_queue

    def gives_way(self, newcomer: Request, traffic: TrafficClass, rank: float) -> RequestKey | None:
        """Who has to go so that the newcomer may wait; None if it is the newcomer."""
        giving = traffic if self._is_full(traffic) else self._least_important(traffic)
        last = self._last_of(giving)
        if last is None:
            return None
        length, key = last
        if giving is not traffic:
            return key
        other = self._waiting[key]
        if other.request.client == newcomer.client:
            return key if rank < other.rank[0] else None
        own = sum(lane.waiting_of(newcomer.client) for lane in self._lanes_of(traffic))
        return key if length > (own + 1) / traffic.share_of(newcomer.client) else None

    def _is_full(self, traffic: TrafficClass) -> bool:
        return self._counts.get(traffic.name, 0) >= (traffic.max_queue or self._max_queue)

    def _least_important(self, own: TrafficClass) -> TrafficClass:
        """Of the classes of the lowest level, the newcomer's among them, that with the most waiting for its weight."""

        def preference(traffic: TrafficClass) -> tuple[int, float]:
            count = self._counts.get(traffic.name, 0) + (traffic is own)
            return traffic.level, -count / traffic.weight

        return min((each for each in self._classes if each is own or self._last_of(each)), key=preference)

    def _last_of(self, traffic: TrafficClass) -> Last | None:
        return max((last for lane in self._lanes_of(traffic) if (last := lane.longest())), default=None)

    def _lanes_of(self, traffic: TrafficClass) -> Iterable[Lane]:
        return (lane for (name, _), lane in self._lanes.items() if name == traffic.name)
