"""Says on the bus which blocks this store holds: what has changed, ten times a second; that nothing has, once a second.

Whoever missed something asks for the inventory. The bus may be away; then only the numbers go on.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from services.core.block_facts import Facts, Outgoing, Stock
from services.core.ids import BlockHash
from services.pb import kvstore_pb2
from services.runtime.bus import Bus
from services.runtime.codec import facts_to_pb
from services.runtime.directory import blocks_subject
from services.runtime.process import Identity

LOOK_SECONDS = 0.1
LOOKS_UNTIL_REPEATED = 10


class Content(Protocol):
    """Blocks of one model and format; those of another are another object."""

    @property
    def fingerprint(self) -> str: ...
    @property
    def format(self) -> str: ...
    def drain_changes(self) -> tuple[Sequence[BlockHash], Sequence[BlockHash]]:
        """(sealed, gone) since the last call, or since there is such content."""


class FactsPublisher:
    """Run `keep` for as long as the store lives."""

    def __init__(self, bus: Bus, identity: Identity, content: Callable[[], Content | None]) -> None:
        self._bus = bus
        self._identity = identity
        self._content = content
        self._address = ""
        self._latest: Content | None = None
        self._outgoing: Outgoing | None = None
        self._lives = 0
        self._looks = 0
        """Since something was said."""

    async def keep(self, address: str) -> None:
        """For ever; `address` is where others dial this store."""
        self._address = address
        while True:
            for facts in self._news():
                message = facts_to_pb(facts).SerializeToString()
                await self._bus.publish(blocks_subject(self._identity.name), message)
            await asyncio.sleep(LOOK_SECONDS)

    def inventory(self, request: kvstore_pb2.InventoryRequest) -> list[kvstore_pb2.BlockFacts]:
        """All that was told of so far; nothing new to whoever knows it; no message before the first word on the bus."""
        outgoing = self._outgoing
        if outgoing is None:
            return []
        if (request.incarnation, request.sequence) == (outgoing.stock.incarnation, outgoing.sequence):
            return [facts_to_pb(outgoing.latest())]
        return [facts_to_pb(facts, is_inventory=True) for facts in outgoing.inventory()]

    def _news(self) -> list[Facts]:
        content = self._content()
        if self._outgoing is None or content is not self._latest:
            self._latest = content
            self._outgoing = Outgoing(self._new_stock(content))
            self._looks = LOOKS_UNTIL_REPEATED
        self._looks += 1
        told = self._outgoing.take(*content.drain_changes()) if content else []
        if not told and self._looks >= LOOKS_UNTIL_REPEATED:
            told = [self._outgoing.latest()]
        if told:
            self._looks = 0
        return told

    def _new_stock(self, content: Content | None) -> Stock:
        self._lives += 1
        incarnation = f"{self._identity.incarnation}.{self._lives}"
        name, address = self._identity.name, self._address
        if content is None:
            return Stock(name, address, incarnation)
        return Stock(name, address, incarnation, content.fingerprint, content.format)
