"""What the store has to tell its parties. Plain facts; the sessions turn them into messages."""

from collections.abc import Iterable
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

    def followed_by(self, later: "Available") -> "Available":
        """Both in one, to the same party about the same hand-over."""
        return Available(
            self.to,
            self.key,
            self.blocks + later.blocks,
            self.is_complete or later.is_complete,
            self.never + later.never,
        )


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


def gathered(notices: Iterable[Notice]) -> list[Notice]:
    """The same news in fewer notices: what becomes available of one hand-over, one after the other, is told at once.

    For each party and hand-over the order stays as it was.
    """
    found: list[Notice] = []
    latest: dict[tuple[Party, RequestKey], int] = {}
    """Where the last notice to a party about a hand-over is in `found`."""
    for notice in notices:
        about = notice.to, notice.key
        before = found[latest[about]] if about in latest else None
        if isinstance(notice, Available) and isinstance(before, Available):
            found[latest[about]] = before.followed_by(notice)
        else:
            latest[about] = len(found)
            found.append(notice)
    return found
