"""Hand-overs by request: the live ones, and for a while those that are over, so that whoever is late is refused."""

from collections import OrderedDict

from services.core.handoff import LIVE, State
from services.core.ids import RequestKey
from services.kvstore.record import Record

REMEMBERED = 4096
"""Ended hand-overs that are known as such; an older one that comes back finds no writer and ends with its request."""


class Archive:
    """All records of one store."""

    def __init__(self) -> None:
        self.live: dict[RequestKey, Record] = {}
        """Those that somebody holds."""
        self.past: OrderedDict[RequestKey, Record] = OrderedDict()

    def get(self, key: RequestKey) -> Record | None:
        return self.live.get(key) or self.past.get(key)

    def file(self, record: Record) -> None:
        """To be called after every change of its state."""
        if record.handoff.state in LIVE:
            self.past.pop(record.key, None)
            self.live[record.key] = record
            return
        self.live.pop(record.key, None)
        if record.handoff.state is State.CLOSED:
            record.clear()
        self.past[record.key] = record
        while len(self.past) > REMEMBERED:
            self.past.popitem(last=False)
