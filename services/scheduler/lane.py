"""The waiting requests of one class and one model: clients by fair share, each client's own by rank.

The rank is arrival less a head start for each level of priority: it never changes, so whoever waits is overtaken by
fewer and fewer, and priority is worth nothing against another client. The head is not overtaken within its lane, so a
large request is not starved by small ones.
"""

from dataclasses import dataclass

from services.core.ids import RequestKey
from services.core.request import Request
from services.scheduler.classes import TrafficClass
from services.scheduler.fair_share import FairShare
from services.scheduler.ranking import Rank, Ranking

LaneName = tuple[str, str]
"""Class and model."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """One request in the queue."""

    request: Request
    lane: LaneName
    rank: Rank
    until: float
    is_returned: bool
    """It had a place and lost it."""


class _Client:
    """One client's waiting requests."""

    def __init__(self) -> None:
        self.order: Ranking[RequestKey] = Ranking()
        self.reverse: Ranking[RequestKey] = Ranking()


class Lane:
    """Pure; every operation is O(log n)."""

    def __init__(self, traffic: TrafficClass) -> None:
        self.traffic = traffic
        self.stalled_since: float | None = None
        """When its head was first found to have no room."""
        self._clients: dict[str, _Client] = {}
        self._shares: FairShare[str] = FairShare()
        self._longest: Ranking[str] = Ranking()
        self._returned: Ranking[RequestKey] = Ranking()
        self._size = 0
        self._changes = 0

    def __len__(self) -> int:
        return self._size

    @property
    def num_clients(self) -> int:
        return len(self._clients)

    def waiting_of(self, client: str) -> int:
        """How many requests of a client wait, those returned aside."""
        entry = self._clients.get(client)
        return len(entry.order) if entry else 0

    def head(self) -> RequestKey | None:
        """Who is next: those that had a place before all others."""
        if (returned := self._returned.first()) is not None:
            return returned
        client = self._shares.first()
        return self._clients[client].order.first() if client is not None else None

    def add(self, waiting: Waiting) -> None:
        key, client = waiting.request.key, waiting.request.client
        self._size += 1
        if waiting.is_returned:
            self._returned.put(key, waiting.rank)
            return
        entry = self._clients.setdefault(client, _Client())
        entry.order.put(key, waiting.rank)
        entry.reverse.put(key, (-waiting.rank[0], -waiting.rank[1]))
        self._shares.join(client)
        self._note_length(client)

    def take(self, waiting: Waiting, work: float) -> None:
        """It gets its place, and its client is charged; once, however often it comes back."""
        if not waiting.is_returned:
            client = waiting.request.client
            self._shares.charge(client, work / self.traffic.share_of(client))
        self.drop(waiting)

    def drop(self, waiting: Waiting) -> None:
        """It is not waiting any more."""
        key, client = waiting.request.key, waiting.request.client
        if key == self.head():
            self.stalled_since = None
        self._size -= 1
        if waiting.is_returned:
            self._returned.discard(key)
            return
        entry = self._clients[client]
        entry.order.discard(key)
        entry.reverse.discard(key)
        if not entry.order:
            del self._clients[client]
            self._shares.leave(client)
        self._note_length(client)

    def longest(self) -> tuple[float, RequestKey] | None:
        """The greatest number of waiting requests for its share that a client has, and the last of these in rank."""
        client = self._longest.first()
        if client is None:
            return None
        last = self._clients[client].reverse.first()
        assert last is not None
        return -self._longest.rank(client)[0], last

    def _note_length(self, client: str) -> None:
        if count := self.waiting_of(client):
            # Ties go to whoever's length changed last.
            self._changes += 1
            self._longest.put(client, (-count / self.traffic.share_of(client), -self._changes))
        else:
            self._longest.discard(client)
