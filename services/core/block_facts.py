"""Which blocks a store holds, told as numbered changes: the side that tells and the side that hears.

    store:     sealed, gone ──take──▶ Facts 1, 2, 3 …        hear ──▶ the same set of blocks, or a Gap
               all of them  ──inventory──────────────▶        replace ──▶ the gap is closed

Facts may be lost, doubled or late. They are applied in the order of their numbers, so whoever hears either has what the
store had at one number, or knows that something is missing. Facts are advisory: what a store answers outranks them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NewType

from services.core.ids import BlockHash

ShortHash = NewType("ShortHash", bytes)
"""The beginning of a block's hash: enough to tell blocks apart, half as long on the wire."""

SHORT_BYTES = 16
MOST_IN_MESSAGE = 3500
"""Blocks in one message, which keeps it below 64 KiB."""
MOST_AHEAD = 64
"""Messages kept for the time when those before them are known."""


def short(block_hash: BlockHash) -> ShortHash:
    return ShortHash(block_hash[:SHORT_BYTES])


class BlockSource(NamedTuple):
    """A store that holds the first `blocks` blocks of a prompt."""

    kvstore: str
    """Address."""
    blocks: int


@dataclass(frozen=True, slots=True)
class Stock:
    """One life of a store's content; it begins empty. A restart, another model or format is another stock."""

    store: str
    """Name."""
    address: str
    incarnation: str
    fingerprint: str = ""
    format: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What changed in a stock since the facts before. Without blocks they repeat the latest number."""

    stock: Stock
    sequence: int
    added: tuple[ShortHash, ...] = ()
    removed: tuple[ShortHash, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not self.added and not self.removed


class Gap(NamedTuple):
    """Facts of a store were not heard: its inventory says what it holds now."""

    address: str
    missing: int
    """Numbers between what is known and what was heard of."""


class Outgoing:
    """The side that tells: one stock, and what was told of it."""

    def __init__(self, stock: Stock) -> None:
        self.stock = stock
        self.sequence = 0
        self._held: set[ShortHash] = set()

    def take(self, sealed: Iterable[BlockHash], gone: Iterable[BlockHash]) -> list[Facts]:
        """What to tell of these changes, in order; nothing if they change nothing. No block is in both."""
        removed = sorted({short(each) for each in gone} & self._held)
        added = sorted({short(each) for each in sealed} - self._held)
        self._held.difference_update(removed)
        self._held.update(added)
        told: list[Facts] = []
        for parts in _parts(added, removed):
            self.sequence += 1
            told.append(Facts(self.stock, self.sequence, *parts))
        return told

    def latest(self) -> Facts:
        """Nothing new: so that whoever missed the last facts notices."""
        return Facts(self.stock, self.sequence)

    def inventory(self) -> list[Facts]:
        """All blocks there are at the latest number, in at least one message."""
        held = sorted(self._held)
        return [Facts(self.stock, self.sequence, added) for added, _ in _parts(held, ())] or [self.latest()]


class Incoming:
    """The side that hears: what one store holds, as of `sequence`."""

    def __init__(self, stock: Stock, most_blocks: int) -> None:
        """Of more than `most_blocks`, some are not known; nothing else is lost by that."""
        self.stock = stock
        self.sequence = 0
        self.blocks: set[ShortHash] = set()
        self._most_blocks = most_blocks
        self._ahead: dict[int, Facts] = {}
        """Heard before what comes before them."""
        self._heard = 0
        """The highest number heard of."""

    @property
    def gap(self) -> Gap | None:
        """What is missing now."""
        if self.sequence >= self._heard:
            return None
        return Gap(self.stock.address, self._heard - self.sequence)

    def hear(self, facts: Facts) -> Gap | None:
        """Facts from the bus, in any order; those of another stock begin it anew."""
        self._enter(facts.stock)
        self._heard = max(self._heard, facts.sequence)
        if facts.sequence > self.sequence and not facts.is_empty:
            self._ahead[facts.sequence] = facts
            if len(self._ahead) > MOST_AHEAD:
                # An inventory will cover the oldest first.
                del self._ahead[min(self._ahead)]
        self._catch_up()
        return self.gap

    def replace(self, inventory: Facts) -> Gap | None:
        """All that the store held at the inventory's number. One that is older than what is known changes nothing."""
        self._enter(inventory.stock)
        if inventory.sequence < self.sequence:
            return self.gap
        self.sequence = inventory.sequence
        self.blocks.clear()
        self._add(inventory.added)
        for sequence in [each for each in self._ahead if each <= self.sequence]:
            del self._ahead[sequence]
        self._heard = max((self.sequence, *self._ahead))
        self._catch_up()
        return self.gap

    def check_invariants(self) -> None:
        """AssertionError if the books do not balance."""
        assert len(self.blocks) <= self._most_blocks, "more blocks than there is room for"
        assert len(self._ahead) <= MOST_AHEAD, "more messages kept than there is room for"
        assert all(each > self.sequence + 1 for each in self._ahead), "facts are kept that could be applied"
        assert self._heard >= max((self.sequence, *self._ahead)), "something was heard and forgotten"

    def _enter(self, stock: Stock) -> None:
        if stock != self.stock:
            self.stock = stock
            self.sequence = self._heard = 0
            self.blocks.clear()
            self._ahead.clear()

    def _catch_up(self) -> None:
        while facts := self._ahead.pop(self.sequence + 1, None):
            self.sequence += 1
            self.blocks.difference_update(facts.removed)
            self._add(facts.added)

    def _add(self, added: Sequence[ShortHash]) -> None:
        self.blocks.update(added[: max(self._most_blocks - len(self.blocks), 0)])


def _parts(
    added: Sequence[ShortHash], removed: Sequence[ShortHash]
) -> list[tuple[tuple[ShortHash, ...], tuple[ShortHash, ...]]]:
    """(added, removed) for each message."""
    changes = [*removed, *added]
    cuts = [changes[start : start + MOST_IN_MESSAGE] for start in range(0, len(changes), MOST_IN_MESSAGE)]
    parts, left = [], len(removed)
    for cut in cuts:
        parts.append((tuple(cut[left:]), tuple(cut[:left])))
        left = max(left - len(cut), 0)
    return parts
