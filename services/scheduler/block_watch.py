"""Keeps the prefix index up to date: hears the stores' facts on the bus, and asks a store for its inventory where facts
are missing, where a store is new, and while the bus is away. What cannot be asked stays as it was last known."""

import asyncio
import logging
import time
from dataclasses import replace

from services.core.block_facts import Facts
from services.core.errors import DiptychError, InvalidRequest
from services.pb import kvstore_pb2, kvstore_pb2_grpc
from services.runtime import codec, dial
from services.runtime.bus import Bus
from services.runtime.directory import BLOCKS_SUBJECT
from services.runtime.edge import remote_errors
from services.scheduler.cluster_view import ClusterView

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
SILENT_SECONDS = 3.0
"""A store that has said nothing for so long is asked; facts come at least once a second."""
ASK_AGAIN_SECONDS = 0.5
ASK_TIMEOUT = 5.0


class BlockWatch:
    """Make it before the bus is entered, and run `keep` for as long as the scheduler lives."""

    def __init__(self, bus: Bus, view: ClusterView, token: str, patience: float = SILENT_SECONDS) -> None:
        self._view = view
        self._token = token
        self._patience = patience
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._heard_at: dict[str, float] = {}
        self._not_before: dict[str, float] = {}
        """When a store may be asked next."""
        bus.listen(f"{BLOCKS_SUBJECT}.*", self._heard)

    async def keep(self) -> None:
        """For ever."""
        try:
            while True:
                self._forget_the_gone()
                self._ask_who_is_due()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            asking = list(self._asking.values())
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    def _heard(self, payload: bytes, headers: dict[str, str]) -> None:
        try:
            facts = codec.facts_from_bytes(payload)
        except InvalidRequest:
            log.warning("facts on the bus are not readable")
            return
        self._heard_at[facts.stock.address] = time.monotonic()
        if gap := self._view.prefixes.hear(facts):
            log.info("%d facts of %s are missing", gap.missing, facts.stock.store)
            self._ask_soon(gap.address)

    def _forget_the_gone(self) -> None:
        """Stores that are neither announced nor configured any more, and silent."""
        quiet_before = time.monotonic() - self._patience
        known = {*self._view.prefixes.addresses, *self._heard_at, *self._not_before}
        for address in known - self._view.kvstores.keys():
            if self._heard_at.get(address, 0.0) < quiet_before:
                self._view.prefixes.forget(address)
                self._heard_at.pop(address, None)
                self._not_before.pop(address, None)

    def _ask_who_is_due(self) -> None:
        quiet_before = time.monotonic() - self._patience
        silent = [a for a in self._view.kvstores if self._heard_at.get(a, 0.0) < quiet_before]
        for address in {*silent, *(gap.address for gap in self._view.prefixes.gaps())}:
            self._ask_soon(address)

    def _ask_soon(self, address: str) -> None:
        if address in self._asking or time.monotonic() < self._not_before.get(address, 0.0):
            return
        task = asyncio.create_task(self._ask(address), name=f"inventory-{address}")
        self._asking[address] = task
        task.add_done_callback(lambda _: self._asking.pop(address, None))

    async def _ask(self, address: str) -> None:
        self._not_before[address] = time.monotonic() + self._patience
        try:
            messages = await self._inventory(address)
        except DiptychError as error:
            log.info("a store did not say what it holds: %s", error.reason)
            return
        now = time.monotonic()
        self._not_before[address] = now + ASK_AGAIN_SECONDS
        self._heard_at[address] = now
        self._take(address, messages)

    async def _inventory(self, address: str) -> list[kvstore_pb2.BlockFacts]:
        incarnation, sequence = self._view.prefixes.known(address)
        request = kvstore_pb2.InventoryRequest(incarnation=incarnation, sequence=sequence)
        async with dial.channel(address) as channel:
            stub = kvstore_pb2_grpc.KVStoreStub(channel)
            with remote_errors():
                metadata = dial.call_metadata(self._token)
                return [each async for each in stub.Inventory(request, metadata=metadata, timeout=ASK_TIMEOUT)]

    def _take(self, address: str, messages: list[kvstore_pb2.BlockFacts]) -> None:
        try:
            parts = [codec.facts_from_pb(message) for message in messages]
        except InvalidRequest as error:
            log.warning("%s says what it holds in a way that is not readable: %s", address, error.message)
            return
        if not parts:
            return
        # Filed where it was asked: a configured address may be another than the one it announces.
        stock = replace(parts[0].stock, address=address)
        facts = Facts(stock, parts[0].sequence, tuple(block for part in parts for block in part.added))
        if messages[0].is_inventory:
            self._view.prefixes.replace(facts)
        else:
            self._view.prefixes.hear(facts)
