"""What a worker's requests have still to compute and what they hold, in tokens: what others place requests by."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from services.core.progress import Progress


@dataclass(frozen=True, slots=True)
class Workload:
    """Of all requests on a worker."""

    waiting_tokens: int
    """Known tokens still to be computed before the requests here draw their next one."""
    own_tokens: int
    """Of `waiting_tokens`, those that are to be computed here: no copy of them is awaited."""
    context_tokens: int
    """Known tokens of the requests that hold blocks, all together."""

    @classmethod
    def of(cls, rows: Iterable[Progress]) -> Self:
        waiting = own = context = 0
        for row in rows:
            context += row.known if row.blocks else 0
            if row.remaining > 1:
                waiting += row.remaining
                own += 0 if row.awaits_first or row.wants_fetch else row.remaining
        return cls(waiting, own, context)
