"""What a worker does for its role beyond computing: prefill publishes blocks, decode fetches them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from services.core.batch_events import Reserved, SealedBlock
from services.core.block_facts import BlockSource
from services.core.ids import RequestKey
from services.core.ledger import Segment
from services.core.prefix_fetch import KnownPrefix
from services.core.request import FinishReason, Request, Role
from services.pb import session_pb2
from services.runtime.session import Session
from services.runtime.timeline import Timeline

UpSession = Session[session_pb2.Up]


@dataclass(slots=True, eq=False)
class Work:
    """One request on the desk."""

    request: Request
    session: UpSession
    """Who asked; its end cancels the work."""
    timeline: Timeline
    kvstore: str
    """Address of the store that the hand-over goes through; empty for a request that is not handed over."""
    began: float
    conclude: Callable[[session_pb2.Event], None]
    """Sends the last event and takes the work off the desk; for a duty that goes on after the batch."""
    sources: Sequence[BlockSource] = ()
    """Stores that are said to hold the prompt's beginning."""
    cached_tokens: int = 0
    has_spoken: bool = False
    """A token of it has been sent from here."""

    @property
    def key(self) -> RequestKey:
        return self.request.key


class Duty(Protocol):
    """All methods are called on the loop thread and return at once."""

    roles: frozenset[Role]
    """What this worker takes."""

    def known(self, sources: Sequence[BlockSource], now: float) -> KnownPrefix:
        """What of a prompt's beginning could be fetched, and for how much."""

    def begin(self, work: Work, now: float) -> None:
        """The request is queued."""

    def started(self, work: Work, now: float) -> None:
        """It left the queue and holds blocks."""

    def reserved(self, work: Work, event: Reserved, now: float) -> None:
        """Its blocks are there to be filled."""

    def planned(self, work: Work, now: float) -> None:
        """A chunk of it is about to be computed."""

    def sealed(self, work: Work, blocks: tuple[SealedBlock, ...]) -> None:
        """Blocks became full; each is pinned until `Batcher.unpin`."""

    def first_token(self, work: Work, now: float) -> None:
        """Prefill drew the first token elsewhere; the batch has it."""

    def emitted(self, work: Work, now: float) -> tuple[Segment, ...]:
        """A token was drawn here; segments to send along."""

    def finished(self, work: Work, reason: FinishReason) -> bool:
        """The batch is done with it. True if the duty is, too; else it calls `work.conclude` later."""

    def abandon(self, work: Work) -> None:
        """It is dropped: cancelled, failed or lost. Lets go of all that is held for it."""
