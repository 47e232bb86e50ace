"""One life of a block in a store, and who has to do with it."""

from dataclasses import dataclass, field
from enum import Enum

from services.core.block_life import IN_WRITING, BlockState
from services.core.handoff import Holder, Party
from services.core.ids import BlockHash, RequestKey
from services.kvstore.pages import Grant


@dataclass(frozen=True, slots=True)
class Stand:
    """Whoever offers a block: for what, and on which session."""

    holder: Holder
    party: Party

    def is_far_process(self, key: RequestKey, incarnation: str) -> bool:
        """It is this process, for this request, and the store copies what it sends."""
        return self.holder.key == key and self.party.incarnation == incarnation and not self.party.is_near


@dataclass(slots=True, eq=False)
class Block:
    """One life of a block under its hash; a later life is another object and has another generation."""

    hash: BlockHash
    grant: Grant
    writer: Stand
    state: BlockState = BlockState.GRANTED
    checksum: int = 0
    """xxh3-64 of its bytes; only once sealed."""
    waiting: list[Stand] = field(default_factory=list)
    """Those who want it sealed, in order; the writer among them, until it closes."""
    pins: set[Holder] = field(default_factory=set)

    @property
    def is_in_writing(self) -> bool:
        """Its writer may fill the page."""
        return self.state in IN_WRITING

    @property
    def is_sealed(self) -> bool:
        """Its bytes are whole and good."""
        return self.state is BlockState.SEALED


class Answer(Enum):
    """To an offer."""

    GRANTED = "granted"
    """Whoever offered it is its writer from now on, and has a page."""
    EXISTS = "exists"
    """Sealed, and pinned for whoever offered it, unless that was for the cache."""
    PENDING = "pending"
    """It is being written; whoever offered it waits, unless that was for the cache."""
    REFUSED = "refused"
    """There is no page for it."""
