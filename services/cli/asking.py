"""Asks processes what they hold, all at once, and gives their answers as the audit compares them."""

import asyncio
import time
from collections.abc import Collection, Sequence
from typing import Self

import grpc.aio

from services.cli.record import ServiceRecord
from services.core.audit import Held, Snapshot
from services.core.errors import DiptychError
from services.pb import operations_pb2, operations_pb2_grpc
from services.runtime import dial
from services.runtime.edge import remote_errors

ANSWER_SECONDS = 2.0


class Asking:
    """Channels to the processes asked last, kept open. An async context manager."""

    def __init__(self, token: str) -> None:
        self._metadata = dial.call_metadata(token)
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close(tuple(self._channels))

    async def look(self, processes: Sequence[ServiceRecord]) -> list[Snapshot]:
        """One look at all of `processes`; one that does not answer in time, or has no address yet, is silent."""
        addresses = {process.address for process in processes}
        await self._close([address for address in self._channels if address not in addresses])
        return await asyncio.gather(*(self._ask(process) for process in processes))

    async def _ask(self, process: ServiceRecord) -> Snapshot:
        asked = time.monotonic()
        try:
            report = await self._report(process.address) if process.address else None
        except DiptychError:
            report = None
        heard = time.monotonic()
        if report is None:
            return Snapshot(process.service, process.name, asked, heard, is_silent=True)
        held = tuple(map(_held, report.holdings))
        return Snapshot(
            report.service, report.name, asked, heard, report.incarnation, held, blocks_used=report.load.blocks_used
        )

    async def _report(self, address: str) -> operations_pb2.AuditReport:
        if address not in self._channels:
            self._channels[address] = dial.channel(address)
        stub = operations_pb2_grpc.OperationsStub(self._channels[address])
        with remote_errors():
            return await stub.Audit(operations_pb2.AuditRequest(), timeout=ANSWER_SECONDS, metadata=self._metadata)

    async def _close(self, addresses: Collection[str]) -> None:
        await asyncio.gather(*(self._channels.pop(address).close() for address in addresses))


def _held(holding: operations_pb2.Holding) -> Held:
    return Held(
        kind=holding.kind,
        request_id=holding.request_id,
        attempt=holding.attempt,
        age=holding.age_seconds,
        count=holding.count,
        state=holding.state,
        owner=holding.owner,
        last_heard=holding.last_heard_seconds,
    )
