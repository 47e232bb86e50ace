"""Which stores' arenas are mapped here: attached when a session opens, let go when it has ended and no copy runs.

A session that ends may mean that the store is dead. Then its arena is an orphan, and whoever had it mapped removes it,
so that memory comes back although the store is not started again.
"""

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path

from services.core.errors import KVIncompatible
from services.pb import kvstore_pb2
from services.runtime.arena_file import sweep
from services.runtime.arena_map import ArenaMap, ArenaPlace
from services.runtime.kv_links import StoreSession
from services.runtime.kv_near import NearTools, NearWay

log = logging.getLogger(__name__)

SWEEPS = (0.0, 0.1, 0.4, 1.0)
"""Pauses before each look at the arena of a lost session: the system takes a moment to bury a process."""

POPULATE_BYTES = 32 << 20


class Attachments:
    """By session; implements `Ground`. `close` once no session is left."""

    def __init__(self, tools: NearTools, may_attach: bool) -> None:
        self._tools = tools
        self._thread = tools.thread
        self._may_attach = may_attach
        self._arenas: dict[StoreSession, ArenaMap] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()

    def way(self, session: StoreSession) -> NearWay | None:
        """For the session of a store whose arena is mapped."""
        arena = self._arenas.get(session)
        return NearWay(self._tools, arena, session) if arena else None

    def addresses(self) -> list[str]:
        """Of these stores."""
        return sorted(session.address for session in self._arenas)

    async def attach(self, session: StoreSession, said: kvstore_pb2.Arena) -> None:
        """Maps the arena that the store speaks of, if it is within reach, and says so."""
        if not said.path or not self._may_attach:
            return
        place = ArenaPlace(Path(said.path), said.size, said.stride, said.nonce, said.slot)
        try:
            arena = await self._thread.run(partial(ArenaMap, place, self._tools.block_bytes))
        except (OSError, KVIncompatible) as error:
            log.info("%s is not on this node (%s), blocks are streamed", session.peer.name, error)
            return
        if not session.is_open:
            self._let_go(arena)
            return
        self._arenas[session] = arena
        session.send(kvstore_pb2.StoreDown(attached=kvstore_pb2.Attached(nonce=said.nonce)))
        self._start(self._populate(session, arena), "populate")

    def detach(self, session: StoreSession) -> None:
        """The session has ended: no copy begins any more."""
        if arena := self._arenas.pop(session, None):
            self._let_go(arena)

    async def close(self) -> None:
        """Returns when nothing is mapped any more."""
        self._closing.set()
        while self._tasks:
            await asyncio.gather(*self._tasks)

    # --- private

    def _let_go(self, arena: ArenaMap) -> None:
        self._start(self._unmap(arena), "unmap")

    def _start(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _populate(self, session: StoreSession, arena: ArenaMap) -> None:
        """Piece by piece, whenever nothing is copied."""
        for start in range(0, arena.place.size, POPULATE_BYTES):
            if session not in self._arenas:
                return
            await self._thread.run(partial(arena.populate, start, POPULATE_BYTES), urgent=False)

    async def _unmap(self, arena: ArenaMap) -> None:
        # The thread does one thing at a time: what it copies now is done before this.
        await self._thread.run(arena.close, urgent=False)
        for pause in SWEEPS:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._closing.wait()
            await self._thread.run(partial(sweep, arena.place.path.parent), urgent=False)
            if self._closing.is_set() or not arena.place.path.exists():
                return
