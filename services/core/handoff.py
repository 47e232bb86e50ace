"""The life of a hand-over, as a table in which every pair of state and fact is decided.

A hand-over is one attempt at one request: a writer offers and puts blocks, a reader claims them, wants some and gets
those. Either may speak first, either may leave or be lost at any moment. For the other side a loss and a release are
the same; for the pages they are not: after a release no copy runs, after a loss one may.

                 CLAIM               COMPLETE, WRITER_GONE, _LOST       READER_GONE
    OFFERED ──────────────▶ JOINED ──────────────────────▶ READING ──────────────▶ CLOSED
       │ COMPLETE             ▲ OFFER                       ▲  ▲                     ▲
       ▼                   CLAIMED ─────────────────────────┼──┼─────────────────────┘
    WAITING ──── CLAIM ─────────────────────────────────────┘  │ CLAIM
       └── WRITER_GONE, _LOST (also from OFFERED) ──▶ LEFT ────┘

Owns who may act and what follows; must not know blocks, messages, sessions or clocks.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NamedTuple

from services.core.ids import RequestKey


class State(Enum):
    NEW = "new"
    """Nobody has spoken."""
    OFFERED = "offered"
    """The writer only, and more may come."""
    WAITING = "waiting"
    """The writer only; all it has is sealed."""
    CLAIMED = "claimed"
    """The reader only."""
    JOINED = "joined"
    """Both, and more may come."""
    READING = "reading"
    """The reader takes what is sealed; no more will come."""
    LEFT = "left"
    """The writer has left before the reader came. Holds no pins; a late reader gets what is still cached."""
    CLOSED = "closed"
    """Over; remembered for a while so that whoever is late is refused."""


class Fact(Enum):
    CLAIM = "claim"
    OFFER = "offer"
    SEALED = "sealed"
    """A block of the hand-over became readable."""
    FAILED = "failed"
    """A block of the hand-over will not come after all, or was found to be bad."""
    COMPLETE = "complete"
    """The writer will offer no more, and nothing it offered is still to come."""
    WANT = "want"
    """The reader has said which blocks it lacks."""
    WRITER_GONE = "writer gone"
    """Released: none of its copies runs."""
    WRITER_LOST = "writer lost"
    """Its session ended: its copies may still run."""
    READER_GONE = "reader gone"
    """Released, or its session is lost."""


class Effect(Enum):
    """What the owner of the hand-over has to do, in the order given."""

    REFUSE = "refuse"
    """Whoever caused the fact gets StaleHandoff; nothing else changes."""
    TELL_READER = "tell reader"
    """That there is a writer; which blocks are sealed, and which will not come, that it has not heard of; whether more
    will come."""
    TELL_WRITER = "tell writer"
    """That the hand-over is closed."""
    WITHDRAW = "withdraw"
    """Give up the blocks that are not sealed; the writer copies none of them."""
    RECALL = "recall"
    """Wait no more for the blocks that are not sealed; the writer may be copying."""
    SKIP = "skip"
    """Let go of the blocks that the reader does not want."""
    UNPIN = "unpin"
    """Let go of the sealed blocks; they stay cached."""
    PIN_AGAIN = "pin again"
    """Pin those of its blocks that are still cached, forget the others."""


class Outcome(NamedTuple):
    state: State
    effects: tuple[Effect, ...] = ()


def _same(state: State, *facts: Fact) -> dict[tuple[State, Fact], Outcome]:
    return {(state, fact): Outcome(state) for fact in facts}


def _refused(state: State, *facts: Fact) -> dict[tuple[State, Fact], Outcome]:
    return {(state, fact): Outcome(state, (Effect.REFUSE,)) for fact in facts}


TABLE: dict[tuple[State, Fact], Outcome] = {
    (State.NEW, Fact.CLAIM): Outcome(State.CLAIMED),
    (State.NEW, Fact.OFFER): Outcome(State.OFFERED),
    **_refused(State.NEW, Fact.SEALED, Fact.FAILED, Fact.COMPLETE, Fact.WANT),
    **_same(State.NEW, Fact.WRITER_GONE, Fact.WRITER_LOST, Fact.READER_GONE),
    #
    (State.OFFERED, Fact.CLAIM): Outcome(State.JOINED, (Effect.TELL_READER,)),
    (State.OFFERED, Fact.COMPLETE): Outcome(State.WAITING),
    (State.OFFERED, Fact.WRITER_GONE): Outcome(State.LEFT, (Effect.WITHDRAW, Effect.UNPIN)),
    (State.OFFERED, Fact.WRITER_LOST): Outcome(State.LEFT, (Effect.RECALL, Effect.UNPIN)),
    **_refused(State.OFFERED, Fact.WANT),
    **_same(State.OFFERED, Fact.OFFER, Fact.SEALED, Fact.FAILED, Fact.READER_GONE),
    #
    (State.WAITING, Fact.CLAIM): Outcome(State.READING, (Effect.TELL_READER,)),
    (State.WAITING, Fact.WRITER_GONE): Outcome(State.LEFT, (Effect.UNPIN,)),
    (State.WAITING, Fact.WRITER_LOST): Outcome(State.LEFT, (Effect.UNPIN,)),
    **_refused(State.WAITING, Fact.OFFER, Fact.SEALED, Fact.WANT),
    **_same(State.WAITING, Fact.FAILED, Fact.COMPLETE, Fact.READER_GONE),
    #
    (State.CLAIMED, Fact.OFFER): Outcome(State.JOINED, (Effect.TELL_READER,)),
    (State.CLAIMED, Fact.READER_GONE): Outcome(State.CLOSED),
    **_refused(State.CLAIMED, Fact.SEALED, Fact.FAILED, Fact.COMPLETE),
    **_same(State.CLAIMED, Fact.CLAIM, Fact.WANT, Fact.WRITER_GONE, Fact.WRITER_LOST),
    #
    (State.JOINED, Fact.SEALED): Outcome(State.JOINED, (Effect.TELL_READER,)),
    (State.JOINED, Fact.FAILED): Outcome(State.JOINED, (Effect.TELL_READER,)),
    (State.JOINED, Fact.COMPLETE): Outcome(State.READING, (Effect.TELL_READER,)),
    (State.JOINED, Fact.WANT): Outcome(State.JOINED, (Effect.SKIP,)),
    (State.JOINED, Fact.WRITER_GONE): Outcome(State.READING, (Effect.WITHDRAW, Effect.TELL_READER)),
    (State.JOINED, Fact.WRITER_LOST): Outcome(State.READING, (Effect.RECALL, Effect.TELL_READER)),
    (State.JOINED, Fact.READER_GONE): Outcome(State.CLOSED, (Effect.TELL_WRITER, Effect.RECALL, Effect.UNPIN)),
    **_same(State.JOINED, Fact.CLAIM, Fact.OFFER),
    #
    (State.READING, Fact.FAILED): Outcome(State.READING, (Effect.TELL_READER,)),
    (State.READING, Fact.WANT): Outcome(State.READING, (Effect.SKIP,)),
    (State.READING, Fact.READER_GONE): Outcome(State.CLOSED, (Effect.UNPIN,)),
    **_refused(State.READING, Fact.OFFER, Fact.SEALED),
    **_same(State.READING, Fact.CLAIM, Fact.COMPLETE, Fact.WRITER_GONE, Fact.WRITER_LOST),
    #
    (State.LEFT, Fact.CLAIM): Outcome(State.READING, (Effect.PIN_AGAIN, Effect.TELL_READER)),
    **_refused(State.LEFT, Fact.OFFER, Fact.SEALED, Fact.WANT),
    **_same(State.LEFT, Fact.FAILED, Fact.COMPLETE, Fact.WRITER_GONE, Fact.WRITER_LOST, Fact.READER_GONE),
    #
    **_refused(State.CLOSED, Fact.CLAIM, Fact.OFFER, Fact.SEALED, Fact.WANT),
    **_same(State.CLOSED, Fact.FAILED, Fact.COMPLETE, Fact.WRITER_GONE, Fact.WRITER_LOST, Fact.READER_GONE),
}

LIVE = frozenset({State.OFFERED, State.WAITING, State.CLAIMED, State.JOINED, State.READING})
"""Somebody's session is the lease; in the other states nothing is held."""

WRITABLE = frozenset({State.OFFERED, State.JOINED})
"""Blocks may still be put."""


@dataclass(frozen=True, slots=True)
class Party:
    """One session with a worker."""

    number: int
    """Never used again by the store that gave it; a later session has a higher one."""
    incarnation: str
    """Of the process at the other end; its bulk calls name it."""
    is_near: bool = field(default=False, compare=False)
    """It copies into the store's pages itself. Otherwise the store copies what it sends, and knows when a copy runs."""


class Holder(NamedTuple):
    """Who waits for a block, writes it or keeps it."""

    kind: Literal["handoff", "loan", "cache"]
    key: RequestKey
    party: int = 0
    """Number of the session; 0 for a hand-over, which is held by two."""


class Handoff:
    """One hand-over: its state and who holds which end. The first to take an end keeps it."""

    def __init__(self, key: RequestKey, since: float) -> None:
        self.key = key
        self.since = since
        self.state = State.NEW
        self.writer: Party | None = None
        self.reader: Party | None = None

    def claim(self, party: Party) -> tuple[Effect, ...]:
        """`party` wants to read."""
        if self.reader not in (None, party):
            return (Effect.REFUSE,)
        effects = self.hear(Fact.CLAIM)
        if Effect.REFUSE not in effects:
            self.reader = party
        return effects

    def offer(self, party: Party) -> tuple[Effect, ...]:
        """`party` has blocks."""
        if self.writer not in (None, party):
            return (Effect.REFUSE,)
        effects = self.hear(Fact.OFFER)
        if Effect.REFUSE not in effects:
            self.writer = party
        return effects

    def want(self, party: Party) -> tuple[Effect, ...]:
        """`party` has said which blocks it lacks."""
        if self.reader != party:
            return (Effect.REFUSE,)
        return self.hear(Fact.WANT)

    def facts_of_leaving(self, party: Party, *, is_lost: bool) -> tuple[Fact, ...]:
        """What it means here that `party` released or was lost; nothing for a stranger."""
        ends = ((self.writer, Fact.WRITER_LOST if is_lost else Fact.WRITER_GONE), (self.reader, Fact.READER_GONE))
        return tuple(fact for held_by, fact in ends if held_by == party)

    def hear(self, fact: Fact) -> tuple[Effect, ...]:
        """What follows from `fact`."""
        self.state, effects = TABLE[self.state, fact]
        return effects
