"""What the store has to tell its parties. Plain facts; the sessions turn them into messages."""

from dataclasses import dataclass
from typing import NamedTuple

from services.core.errors import DiptychError
from services.core.handoff import Party
from services.core.ids import BlockHash, RequestKey
from services.kvstore.pages import Grant


class Granted(NamedTuple):
    """A block to be written into a page. To a writer whose bytes the store copies, the page means nothing."""

    hash: BlockHash
    grant: Grant


@dataclass(frozen=True, slots=True)
class BlockRef:
    """A sealed block that is pinned for whoever hears of it."""

    index: int
    """In the prompt."""
    hash: BlockHash
    grant: Grant
    """Where it is; its generation says whether the page still holds it."""
    checksum: int
    """xxh3-64 of its bytes."""


class Wanted(NamedTuple):
    """To the writer of a hand-over, or to whoever offers blocks for the cache: what becomes of its blocks."""

    to: Party
    key: RequestKey
    granted: tuple[Granted, ...] = ()
    """Write these; `written` or `given_up` must follow for each, `release` stands for all of a hand-over."""
    refused: tuple[BlockHash, ...] = ()
    """There is no page for these, or the grant was not this writer's; they will not be sealed for it."""
    not_needed: tuple[BlockHash, ...] = ()
    """These need not be written, not even if they were granted: the reader, or the store, has them or gets them."""


class Available(NamedTuple):
    """To the reader: these blocks are sealed and pinned; with none, that the writer has come.

    To the writer: these are sealed and pinned already, they need not be put.
    """

    to: Party
    key: RequestKey
    blocks: tuple[BlockRef, ...] = ()
    is_complete: bool = False
    """No more will come."""
    never: tuple[BlockHash, ...] = ()
    """These will not come, or are bad."""


class Closed(NamedTuple):
    """The hand-over is over, or was refused."""

    to: Party
    key: RequestKey
    error: DiptychError


class Lent(NamedTuple):
    """To a borrower: the longest known beginning of what it asked for, pinned for it until it gives it back."""

    to: Party
    key: RequestKey
    blocks: tuple[BlockRef, ...] = ()


Notice = Wanted | Available | Closed | Lent
