"""What both ends of a hand-over share on a worker: their tools, and how the end of a transfer is read."""

import asyncio
import logging
from dataclasses import dataclass

from services.core.errors import DiptychError, InternalError, WorkerLost
from services.runtime.faults import Faults
from services.runtime.kv_attachments import Attachments
from services.runtime.kv_far import FarWay
from services.runtime.kv_links import StoreLinks, StoreSession
from services.runtime.kv_way import Way
from services.runtime.telemetry import Telemetry

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tools:
    """Made once per worker."""

    links: StoreLinks
    near: Attachments
    far: FarWay
    telemetry: Telemetry
    faults: Faults

    def way(self, session: StoreSession) -> Way:
        """How bytes get to the store of this session, and from it."""
        return self.near.way(session) or self.far


def outcome(task: asyncio.Task[None], known: DiptychError | None) -> DiptychError | None:
    """How a transfer's task ended: None if well, `known` if that is why it was cancelled."""
    if known is not None:
        return known
    if task.cancelled():
        return WorkerLost("the transfer was given up")
    error = task.exception()
    if error is None or isinstance(error, DiptychError):
        return error
    log.error("a transfer broke", exc_info=error)
    return InternalError("the transfer broke")
