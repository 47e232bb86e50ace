"""What both ends of a hand-over share on a worker: their tools, and how the end of a transfer is read."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from services.core.errors import (
    DiptychError,
    InternalError,
    KVCorrupt,
    KVMissing,
    Overloaded,
    StaleHandoff,
    WorkerLost,
)
from services.runtime.faults import Faults
from services.runtime.kv_attachments import Attachments
from services.runtime.kv_far import FarWay
from services.runtime.kv_links import StoreLinks, StoreSession
from services.runtime.kv_way import Way
from services.runtime.metrics import Metrics
from services.runtime.telemetry import Telemetry

log = logging.getLogger(__name__)

Outcomes = Mapping[str, int]
"""How many blocks became what: sealed, skipped, landed, or a word for an error."""

_WORDS: Mapping[type, str] = {
    KVMissing: "missing",
    KVCorrupt: "corrupt",
    StaleHandoff: "stale",
    Overloaded: "refused",
}


@dataclass(frozen=True, slots=True)
class Tools:
    """Made once per worker."""

    links: StoreLinks
    near: Attachments
    far: FarWay
    telemetry: Telemetry
    metrics: Metrics
    faults: Faults

    def way(self, session: StoreSession) -> Way:
        """How bytes get to the store of this session, and from it."""
        return self.near.way(session) or self.far

    def count(self, way: Way | None, direction: Literal["put", "get"], size: int, became: Outcomes) -> None:
        """What has become of the blocks of a transfer that is over, and the bytes that were moved."""
        name = way.name if way else "none"
        for word, blocks in became.items():
            self.metrics.count("diptych_kv_blocks_total", blocks, way=name, outcome=word)
        self.metrics.count("diptych_kv_bytes_total", size, way=name, direction=direction)


def word_for(error: DiptychError | None) -> str:
    """What has become of a block, if that is why."""
    return _WORDS.get(type(error), "lost")


def reason_of(task: asyncio.Task[None]) -> DiptychError | None:
    """How a step of a transfer went wrong; None if it did not."""
    if task.cancelled():
        return WorkerLost("the transfer was given up")
    error = task.exception()
    if error is None or isinstance(error, DiptychError):
        return error
    log.error("a transfer broke", exc_info=error)
    return InternalError("the transfer broke")
