"""The prefix index under a bus that loses, doubles and reorders, stores that restart or change their format, and
inventories that arrive late: once repaired, it knows exactly what the stores hold."""

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.core.block_facts import Facts, Outgoing, Stock
from services.core.ids import BlockHash
from services.scheduler.prefix_index import PrefixIndex

ADDRESSES = ("s:1", "t:1")
FORMATS = ("float16", "int8")
CHAIN = [BlockHash(f"block-{number}".encode().ljust(32, b".")) for number in range(6)]
addresses = st.sampled_from(ADDRESSES)
some_blocks = st.sets(st.sampled_from(CHAIN))
picks = st.integers(0, 1 << 16)


class Store:
    """What a store really holds, and the side of it that tells."""

    def __init__(self, address: str, life: int, kv_format: str) -> None:
        self.held: set[BlockHash] = set()
        self.life = life
        self.format = kv_format
        self.outgoing = Outgoing(Stock(address, address, f"life-{life}", "f", kv_format))

    def longest(self) -> int:
        return next((place for place, block in enumerate(CHAIN) if block not in self.held), len(CHAIN))


class PrefixIndexMachine(RuleBasedStateMachine):
    @initialize()
    def build(self) -> None:
        self.index = PrefixIndex()
        self.stores = {address: Store(address, 0, FORMATS[0]) for address in ADDRESSES}
        self.on_the_bus: list[Facts] = []
        self.inventories: list[Facts] = []

    @rule(address=addresses, sealed=some_blocks, gone=some_blocks)
    def change(self, address: str, sealed: set[BlockHash], gone: set[BlockHash]) -> None:
        store = self.stores[address]
        store.held = (store.held | sealed) - gone
        self.on_the_bus += store.outgoing.take(sealed - gone, gone)

    @rule(address=addresses)
    def repeat(self, address: str) -> None:
        self.on_the_bus.append(self.stores[address].outgoing.latest())

    @rule(address=addresses, kv_format=st.sampled_from(FORMATS))
    def restart(self, address: str, kv_format: str) -> None:
        self.stores[address] = Store(address, self.stores[address].life + 1, kv_format)

    @rule(address=addresses)
    def answer(self, address: str) -> None:
        """The store is asked; its answer is on its way for a while."""
        self.inventories.append(inventory_of(self.stores[address]))

    @precondition(lambda self: self.on_the_bus)
    @rule(pick=picks, is_kept=st.booleans())
    def deliver(self, pick: int, is_kept: bool) -> None:
        """Any message, and once more later if the bus keeps it."""
        place = pick % len(self.on_the_bus)
        facts = self.on_the_bus[place] if is_kept else self.on_the_bus.pop(place)
        gap = self.index.hear(facts)
        assert (gap is not None) == (facts.stock.address in {each.address for each in self.index.gaps()})

    @precondition(lambda self: self.on_the_bus)
    @rule(pick=picks)
    def lose(self, pick: int) -> None:
        self.on_the_bus.pop(pick % len(self.on_the_bus))

    @precondition(lambda self: self.inventories)
    @rule(pick=picks)
    def arrive(self, pick: int) -> None:
        self.index.replace(self.inventories.pop(pick % len(self.inventories)))

    @rule(address=addresses)
    def forget(self, address: str) -> None:
        self.index.forget(address)
        assert address not in self.index.addresses

    @invariant()
    def books_balance(self) -> None:
        self.index.check_invariants()

    @invariant()
    def what_is_known_without_a_gap_is_what_the_store_held_at_that_number(self) -> None:
        for address, store in self.stores.items():
            if self.index.known(address) == (store.outgoing.stock.incarnation, store.outgoing.sequence):
                assert self._longest(address, store) == store.longest()

    def teardown(self) -> None:
        """The bus is quiet; every store repeats its number, and is asked where something is missing."""
        for store in self.stores.values():
            gap = self.index.hear(store.outgoing.latest())
            if gap is not None:
                assert self.index.replace(inventory_of(store)) is None
        assert self.index.gaps() == []
        for address, store in self.stores.items():
            assert self._longest(address, store) == store.longest()
        self.index.check_invariants()

    def _longest(self, address: str, store: Store) -> int:
        other_formats = [each for each in FORMATS if each != store.format]
        assert all(address not in self.index.longest(CHAIN, "f", each) for each in other_formats)
        assert address not in self.index.longest(CHAIN, "another model", store.format)
        return self.index.longest(CHAIN, "f", store.format).get(address, 0)


def inventory_of(store: Store) -> Facts:
    parts: Sequence[Facts] = store.outgoing.inventory()
    return Facts(parts[0].stock, parts[0].sequence, tuple(block for part in parts for block in part.added))


PrefixIndexMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestPrefixIndex = PrefixIndexMachine.TestCase


def test_stores_beyond_the_limit_are_not_known() -> None:
    index = PrefixIndex(most_stores=1)
    for address in ADDRESSES:
        store = Store(address, 0, FORMATS[0])
        for facts in store.outgoing.take(CHAIN, []):
            index.hear(facts)
    assert index.longest(CHAIN, "f", FORMATS[0]) == {ADDRESSES[0]: len(CHAIN)}
    index.check_invariants()
