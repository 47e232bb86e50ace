"""Which stores hold the beginning of a prompt, as far as their facts were heard. Pure; bounded in stores and blocks."""

from collections.abc import Collection, Sequence

from services.core.block_facts import Facts, Gap, Incoming, short
from services.core.ids import BlockHash

MOST_STORES = 256
MOST_BLOCKS = 1 << 18
"""Of one store; about 25 MB."""


class PrefixIndex:
    """What is known of all stores, by address."""

    def __init__(self, most_stores: int = MOST_STORES, most_blocks: int = MOST_BLOCKS) -> None:
        self._most_stores = most_stores
        self._most_blocks = most_blocks
        self._stores: dict[str, Incoming] = {}

    @property
    def addresses(self) -> Collection[str]:
        """Stores that something is known of."""
        return self._stores.keys()

    def hear(self, facts: Facts) -> Gap | None:
        """Facts from the bus; a gap is to be closed by `replace`."""
        incoming = self._incoming(facts)
        return incoming.hear(facts) if incoming else None

    def replace(self, inventory: Facts) -> Gap | None:
        """A store's own word; a gap remains if more has been heard of meanwhile than came through."""
        incoming = self._incoming(inventory)
        return incoming.replace(inventory) if incoming else None

    def forget(self, address: str) -> None:
        """The store is gone."""
        self._stores.pop(address, None)

    def known(self, address: str) -> tuple[str, int]:
        """(incarnation, number) up to which a store is known."""
        incoming = self._stores.get(address)
        return (incoming.stock.incarnation, incoming.sequence) if incoming else ("", 0)

    def gaps(self) -> list[Gap]:
        """Stores of which facts are missing."""
        return [gap for incoming in self._stores.values() if (gap := incoming.gap)]

    def has_any(self, fingerprint: str, kv_format: str) -> bool:
        """Whether any store holds blocks of this model and format, so that hashes are worth computing."""
        return any(_is_of(each, fingerprint, kv_format) and each.blocks for each in self._stores.values())

    def longest(self, hashes: Sequence[BlockHash], fingerprint: str, kv_format: str) -> dict[str, int]:
        """How many of the first blocks each store holds in this format; stores without the first one are left out."""
        counts: dict[str, int] = {}
        having = [
            (address, each.blocks) for address, each in self._stores.items() if _is_of(each, fingerprint, kv_format)
        ]
        # Few stores have the first block, so that most are looked at once.
        for place, name in enumerate(map(short, hashes)):
            still = [(address, blocks) for address, blocks in having if name in blocks]
            if place and len(still) < len(having):
                counts.update((address, place) for address, blocks in having if name not in blocks)
            having = still
            if not having:
                return counts
        return counts | {address: len(hashes) for address, _ in having if hashes}

    def check_invariants(self) -> None:
        """AssertionError if the books do not balance."""
        assert len(self._stores) <= self._most_stores, "more stores than there is room for"
        for address, incoming in self._stores.items():
            assert incoming.stock.address == address, "a store is filed wrongly"
            incoming.check_invariants()

    def _incoming(self, facts: Facts) -> Incoming | None:
        address = facts.stock.address
        if address not in self._stores:
            if len(self._stores) >= self._most_stores:
                return None
            self._stores[address] = Incoming(facts.stock, self._most_blocks)
        return self._stores[address]


def _is_of(incoming: Incoming, fingerprint: str, kv_format: str) -> bool:
    stock = incoming.stock
    return stock.fingerprint == fingerprint and stock.format == kv_format
