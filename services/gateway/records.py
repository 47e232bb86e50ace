"""Finished requests, remembered for a while so that GetRequest can answer. Bounded; the oldest goes first."""

from collections import OrderedDict
from dataclasses import dataclass

from services.core.errors import NotFound
from services.gateway.answer import Closing, Decision, Usage


@dataclass(frozen=True, slots=True)
class Record:
    """How a request went."""

    request_id: str
    trace_id: str
    outcome: str
    """stop, length, cancelled, or the name of an error."""
    usage: Usage
    closing: Closing
    decisions: tuple[Decision, ...]


class Records:
    """The latest `limit` records."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._records: OrderedDict[str, Record] = OrderedDict()

    def add(self, record: Record) -> None:
        self._records[record.request_id] = record
        while len(self._records) > self._limit:
            self._records.popitem(last=False)

    def get(self, request_id: str) -> Record:
        """Raises NotFound."""
        record = self._records.get(request_id)
        if record is None:
            raise NotFound("no such request is remembered here", field="request_id")
        return record
