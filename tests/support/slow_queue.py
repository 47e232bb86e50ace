"""The scheduler's queue said slowly: lists that are searched from end to end, for the real one to be compared with."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from services.core.request import Request
from services.scheduler.admission import HEAD_START
from services.scheduler.classes import TrafficClass


@dataclass
class Entry:
    request: Request
    traffic: TrafficClass
    model: str
    rank: float
    until: float
    number: int
    is_returned: bool

    @property
    def lane(self) -> tuple[str, str]:
        return self.traffic.name, self.model


class Tags:
    """Start-time fair queueing: tags of those present, and of those absent what is beyond the one served last."""

    def __init__(self) -> None:
        self.served = 0.0
        self.tags: dict[object, float] = {}
        self.order: dict[object, int] = {}
        self.present: set[object] = set()
        self.count = 0

    def put(self, member: object, tag: float) -> None:
        self.count += 1
        self.tags[member], self.order[member] = tag, self.count

    def join(self, member: object) -> None:
        if member not in self.present:
            self.present.add(member)
            self.put(member, max(self.tags.get(member, 0.0), self.served))

    def leave(self, member: object) -> None:
        self.present.remove(member)
        if not self.present:
            self.tags.clear()

    def charge(self, member: object, work: float) -> None:
        self.served = max(self.served, self.tags[member])
        self.put(member, self.tags[member] + work)

    def ordered(self) -> list[object]:
        return sorted(self.present, key=lambda member: (self.tags[member], self.order[member]))


class SlowQueue:
    """Knows nothing of who gives way: that is told it."""

    def __init__(self, classes: Mapping[str, TrafficClass], timeout: float) -> None:
        self.classes = classes
        self.timeout = timeout
        self.entries: list[Entry] = []
        self.lanes = Tags()
        self.clients: dict[tuple[str, str], Tags] = {}
        self.numbers = 0

    def push(self, request: Request, now: float, model: str, *, is_returned: bool) -> None:
        traffic = self.classes.get(request.traffic_class) or self.classes["default"]
        self.numbers += 1
        until = now + (traffic.queue_timeout or self.timeout)
        until = until if request.deadline is None else min(until, request.deadline)
        rank = -request.priority if is_returned else now - request.priority * HEAD_START
        entry = Entry(request, traffic, model, rank, until, self.numbers, is_returned)
        self.entries.append(entry)
        self.lanes.join(entry.lane)
        if not is_returned:
            self.clients.setdefault(entry.lane, Tags()).join(request.client)

    def take(self, entry: Entry, work: float) -> None:
        if not entry.is_returned:
            client = entry.request.client
            self.clients[entry.lane].charge(client, work / entry.traffic.share_of(client))
            self.lanes.charge(entry.lane, work / entry.traffic.weight)
        self.remove(entry)

    def remove(self, entry: Entry) -> None:
        self.entries.remove(entry)
        client = entry.request.client
        rest = [each for each in self.entries if each.lane == entry.lane]
        if not entry.is_returned and not any(e.request.client == client and not e.is_returned for e in rest):
            self.clients[entry.lane].leave(client)
        if not rest:
            self.lanes.leave(entry.lane)
            self.clients.pop(entry.lane, None)

    def heads(self) -> list[Entry]:
        """The head of every lane, in the lanes' order."""
        heads = []
        for lane in self.lanes.ordered():
            rows = [entry for entry in self.entries if entry.lane == lane]
            if any(row.is_returned for row in rows):
                rows = [row for row in rows if row.is_returned]
            else:
                client = self.clients[lane].ordered()[0]
                rows = [row for row in rows if row.request.client == client]
            heads.append(min(rows, key=lambda row: (row.rank, row.number)))
        return heads

    def next_expiry(self) -> float:
        return min((entry.until for entry in self.entries), default=math.inf)
