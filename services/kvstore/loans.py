"""Blocks that workers borrow from the cache: pinned from the answer until they are given back or the session ends.

Asking and pinning are one step, so that nothing is evicted in between. Knows nothing of hand-overs.
"""

from collections.abc import Sequence

from services.core.handoff import Holder, Party
from services.core.ids import BlockHash, RequestKey
from services.kvstore.block import Block
from services.kvstore.block_index import BlockIndex
from services.kvstore.notices import BlockRef, Lent


class Loans:
    """All loans of one store, by request and by session."""

    def __init__(self, index: BlockIndex) -> None:
        self.num_asked = 0
        """Blocks asked for so far."""
        self.num_lent = 0
        """Of these, the ones that were there."""
        self._index = index
        self._loans: dict[RequestKey, dict[Party, list[Block]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._loans.values()))

    @property
    def num_pins(self) -> int:
        """Each borrowed block counts once for each loan."""
        return sum(len(held) for loans in self._loans.values() for held in loans.values())

    def open(self) -> list[tuple[RequestKey, Party, int]]:
        """For which request, to whom, how many blocks."""
        return [(key, party, len(held)) for key, loans in self._loans.items() for party, held in loans.items()]

    def borrow(self, party: Party, key: RequestKey, hashes: Sequence[BlockHash]) -> Lent:
        """Pins the longest sealed beginning of `hashes`, in addition to what `party` has borrowed for `key` already."""
        count = self._index.longest(hashes)
        self.num_asked += len(hashes)
        self.num_lent += count
        blocks = [block for each in hashes[:count] if (block := self._index.pin(each, _holder(key, party)))]
        if blocks:
            held = self._loans.setdefault(key, {}).setdefault(party, [])
            held += [block for block in dict.fromkeys(blocks) if block not in held]
        return Lent(party, key, tuple(BlockRef(n, b.hash, b.grant, b.checksum) for n, b in enumerate(blocks)))

    def give_back(self, party: Party, key: RequestKey) -> None:
        """Legal at any time."""
        loans = self._loans.get(key, {})
        # The tail first, so that of a long prefix the head is evicted last.
        for block in reversed(loans.pop(party, [])):
            self._index.unpin(block.hash, _holder(key, party))
        if not loans:
            self._loans.pop(key, None)

    def lost(self, party: Party) -> None:
        """Its session ended."""
        for key in [key for key, loans in self._loans.items() if party in loans]:
            self.give_back(party, key)

    def readable(self, key: RequestKey, incarnation: str, block_hash: BlockHash) -> Block | None:
        """A block that a session of this process has borrowed."""
        for party in self._loans.get(key, {}):
            if party.incarnation == incarnation and (block := self.pinned(party, key, block_hash)):
                return block
        return None

    def pinned(self, party: Party, key: RequestKey, block_hash: BlockHash) -> Block | None:
        """The block, if it is pinned for this loan."""
        return self._index.pinned(block_hash, _holder(key, party))


def _holder(key: RequestKey, party: Party) -> Holder:
    return Holder("loan", key, party.number)
