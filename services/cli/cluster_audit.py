"""The local cluster's standing audit: a look at all processes every few seconds, each compared with the one before."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from services.cli.asking import Asking
from services.cli.record import ServiceRecord
from services.core.audit import GRACE, Snapshot, Stranded, stranded

log = logging.getLogger(__name__)


class ClusterAudit:
    """Logs and counts what it finds stranded."""

    def __init__(self, token: str, living: Callable[[], Sequence[ServiceRecord]], seconds: float = GRACE) -> None:
        """`living` are the processes to ask; one without an address has not announced itself yet."""
        self._token = token
        self._living = living
        self._seconds = seconds
        self.num_looks = 0
        self.num_stranded = 0
        """So far; a thing counts once for every look that still finds it."""
        self.latest: Sequence[Stranded] = ()
        """What the last look found."""

    @asynccontextmanager
    async def standing(self) -> AsyncIterator[None]:
        """Looks for the length of the block."""
        keeping = asyncio.create_task(self._keep(), name="audit")
        try:
            yield
        finally:
            keeping.cancel()
            (outcome,) = await asyncio.gather(keeping, return_exceptions=True)
        if isinstance(outcome, Exception):
            raise outcome

    async def _keep(self) -> None:
        before: Sequence[Snapshot] = ()
        async with Asking(self._token) as asking:
            while True:
                await asyncio.sleep(self._seconds)
                after = await asking.look(self._living())
                self._note(stranded(before, after, self._seconds))
                before = after

    def _note(self, found: Sequence[Stranded]) -> None:
        self.num_looks += 1
        self.num_stranded += len(found)
        self.latest = found
        for one in found:
            thing = one.held
            log.error(
                "stranded: %s holds %d %s of %s/%d for %.1f s, owner %s: %s",
                *(one.name, thing.count, thing.kind, thing.request_id, thing.attempt, thing.age),
                *(thing.owner or "-", one.why),
            )
