"""Blocks of hand-overs for which there is no page now, but soon may be: lent pages that no hand-over waits for are
coming back, so that a copy made for the cache delays a hand-over and never turns one of its blocks away.

Knows only who waits; the exchange decides when to serve and when to refuse.
"""

from collections import OrderedDict

from services.core.ids import BlockHash, RequestKey
from services.kvstore.block import Stand


class Shortage:
    """First come, first served."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[tuple[BlockHash, RequestKey], Stand] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, entry: tuple[BlockHash, RequestKey]) -> bool:
        return entry in self._waiting

    def add(self, block_hash: BlockHash, stand: Stand) -> None:
        self._waiting.setdefault((block_hash, stand.holder.key), stand)

    def drop(self, block_hash: BlockHash, key: RequestKey) -> None:
        """It is not waited for any more. Legal at any time."""
        self._waiting.pop((block_hash, key), None)

    def take_first(self) -> tuple[BlockHash, Stand]:
        """The one to serve next."""
        (block_hash, _), stand = self._waiting.popitem(last=False)
        return block_hash, stand

    def take_last(self) -> tuple[BlockHash, Stand]:
        """The one to refuse next."""
        (block_hash, _), stand = self._waiting.popitem()
        return block_hash, stand
