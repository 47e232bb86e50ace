"""What the store has to tell the parties of a hand-over. Plain facts; `sessions.py` turns them into messages."""

from typing import NamedTuple

from services.core.errors import DiptychError
from services.core.handoff import Party
from services.core.ids import BlockHash, RequestKey


class Wanted(NamedTuple):
    """To the writer: put these."""

    to: Party
    key: RequestKey
    hashes: tuple[BlockHash, ...]


class Available(NamedTuple):
    """To the reader: these (index, hash) are sealed and pinned; with none, that the writer has come.

    To the writer: these are sealed and pinned already, they need not be put.
    """

    to: Party
    key: RequestKey
    blocks: tuple[tuple[int, BlockHash], ...]
    is_complete: bool = False
    """No more will come."""


class Closed(NamedTuple):
    """The hand-over is over, or was refused."""

    to: Party
    key: RequestKey
    error: DiptychError


Notice = Wanted | Available | Closed
