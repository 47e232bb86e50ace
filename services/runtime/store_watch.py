"""Keeps a worker's sessions with every kvstore that is announced on the bus or configured."""

import asyncio
from collections.abc import Sequence

from services.runtime.bus import Bus
from services.runtime.directory import ANNOUNCE_SECONDS, Directory
from services.runtime.kv_links import StoreLinks


class StoreWatch:
    """Make it before the bus is entered, and run `keep` for as long as the worker lives."""

    def __init__(self, bus: Bus, links: StoreLinks, static: Sequence[str]) -> None:
        self._links = links
        self._static = frozenset(static)
        self._directory = Directory(bus, ("kvstore",))

    async def keep(self) -> None:
        """For ever."""
        while True:
            self._directory.forget_silent()
            wanted = self._static.union(store.address for store in self._directory.present("kvstore"))
            for address in wanted:
                self._links.ensure(address)
            for address in set(self._links.absent()) - wanted:
                await self._links.drop(address)
            await asyncio.sleep(ANNOUNCE_SECONDS)
