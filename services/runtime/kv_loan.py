"""A loan: the longest beginning of some blocks that a store has in its cache, got into reserved blocks and given back.

Unlike a hand-over it waits for nobody: what the store has, it says at once. A store that there is no session with, or
that is slow to answer, lends nothing.
"""

from collections.abc import Sequence

from services.core.batch_events import FetchBlock
from services.pb import kvstore_pb2
from services.runtime.codec import handoff_to_pb
from services.runtime.kv_fetch import Fetch, ReaderCalls, places_of
from services.runtime.kv_links import StoreSession
from services.runtime.kv_tools import Tools
from services.runtime.kv_way import Lane


class Loan(Fetch):
    """One loan, asked for when it is made. All verbs return at once and are legal at any time."""

    holding = "borrowing"
    span_name = "kv.borrow"
    silence = "the store does not say what it lends"

    def __init__(
        self, tools: Tools, lane: Lane, blocks: Sequence[FetchBlock], since: float, calls: ReaderCalls
    ) -> None:
        super().__init__(tools, lane._replace(is_loan=True), calls)
        self.want(blocks, since)
        self.expect()

    def heard(self, message: kvstore_pb2.StoreUp, now: float) -> None:
        if message.WhichOneof("kind") == "lent":
            self._follow(self._reading.lent(places_of(message.lent.blocks), now))

    def _ask(self) -> kvstore_pb2.StoreDown:
        borrow = kvstore_pb2.Borrow(loan=handoff_to_pb(self.lane.key), hashes=self._reading.missing)
        return kvstore_pb2.StoreDown(borrow=borrow)

    def _lacking(self) -> None:
        """That was asked for."""

    def _goodbye(self) -> kvstore_pb2.StoreDown:
        return kvstore_pb2.StoreDown(return_loan=kvstore_pb2.Return(loan=handoff_to_pb(self.lane.key)))

    async def _connected(self) -> StoreSession:
        return await self._tools.links.live(self.lane.store)
