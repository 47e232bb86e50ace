"""The life of a hand-over, as a table in which every pair of state and fact is decided.

A hand-over is one attempt at one request: a writer offers and puts blocks, a reader claims and gets them. Either may
speak first, either may leave or be lost at any moment; for the other side a loss and a release are the same.

                 CLAIM                 COMPLETE, WRITER_GONE            READER_GONE
    OFFERED ──────────────▶ JOINED ──────────────────────▶ READING ──────────────▶ CLOSED
       │ COMPLETE             ▲ OFFER                       ▲  ▲                     ▲
       ▼                   CLAIMED ─────────────────────────┼──┼─────────────────────┘
    WAITING ──── CLAIM ─────────────────────────────────────┘  │ CLAIM
       └───────── WRITER_GONE (also from OFFERED) ──▶ LEFT ────┘

Owns who may act and what follows; must not know blocks, messages, sessions or clocks.
"""

from enum import Enum
from typing import NamedTuple

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
    COMPLETE = "complete"
    """The writer will offer no more, and nothing it offered is still to come."""
    WRITER_GONE = "writer gone"
    """Released, or its session is lost."""
    READER_GONE = "reader gone"
    """Released, or its session is lost."""


class Effect(Enum):
    """What the owner of the hand-over has to do, in the order given."""

    REFUSE = "refuse"
    """Whoever caused the fact gets StaleHandoff; nothing else changes."""
    TELL_READER = "tell reader"
    """That there is a writer, which blocks are sealed that it has not heard of, and whether more will come."""
    TELL_WRITER = "tell writer"
    """That the hand-over is closed."""
    WITHDRAW = "withdraw"
    """Give up the blocks that are not sealed."""
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
    **_refused(State.NEW, Fact.SEALED, Fact.COMPLETE),
    **_same(State.NEW, Fact.WRITER_GONE, Fact.READER_GONE),
    #
    (State.OFFERED, Fact.CLAIM): Outcome(State.JOINED, (Effect.TELL_READER,)),
    (State.OFFERED, Fact.COMPLETE): Outcome(State.WAITING),
    (State.OFFERED, Fact.WRITER_GONE): Outcome(State.LEFT, (Effect.WITHDRAW, Effect.UNPIN)),
    **_same(State.OFFERED, Fact.OFFER, Fact.SEALED, Fact.READER_GONE),
    #
    (State.WAITING, Fact.CLAIM): Outcome(State.READING, (Effect.TELL_READER,)),
    (State.WAITING, Fact.WRITER_GONE): Outcome(State.LEFT, (Effect.UNPIN,)),
    **_refused(State.WAITING, Fact.OFFER, Fact.SEALED),
    **_same(State.WAITING, Fact.COMPLETE, Fact.READER_GONE),
    #
    (State.CLAIMED, Fact.OFFER): Outcome(State.JOINED, (Effect.TELL_READER,)),
    (State.CLAIMED, Fact.READER_GONE): Outcome(State.CLOSED),
    **_refused(State.CLAIMED, Fact.SEALED, Fact.COMPLETE),
    **_same(State.CLAIMED, Fact.CLAIM, Fact.WRITER_GONE),
    #
    (State.JOINED, Fact.SEALED): Outcome(State.JOINED, (Effect.TELL_READER,)),
    (State.JOINED, Fact.COMPLETE): Outcome(State.READING, (Effect.TELL_READER,)),
    (State.JOINED, Fact.WRITER_GONE): Outcome(State.READING, (Effect.WITHDRAW, Effect.TELL_READER)),
    (State.JOINED, Fact.READER_GONE): Outcome(State.CLOSED, (Effect.TELL_WRITER, Effect.WITHDRAW, Effect.UNPIN)),
    **_same(State.JOINED, Fact.CLAIM, Fact.OFFER),
    #
    (State.READING, Fact.READER_GONE): Outcome(State.CLOSED, (Effect.UNPIN,)),
    **_refused(State.READING, Fact.OFFER, Fact.SEALED),
    **_same(State.READING, Fact.CLAIM, Fact.COMPLETE, Fact.WRITER_GONE),
    #
    (State.LEFT, Fact.CLAIM): Outcome(State.READING, (Effect.PIN_AGAIN, Effect.TELL_READER)),
    **_refused(State.LEFT, Fact.OFFER, Fact.SEALED),
    **_same(State.LEFT, Fact.COMPLETE, Fact.WRITER_GONE, Fact.READER_GONE),
    #
    **_refused(State.CLOSED, Fact.CLAIM, Fact.OFFER, Fact.SEALED),
    **_same(State.CLOSED, Fact.COMPLETE, Fact.WRITER_GONE, Fact.READER_GONE),
}

LIVE = frozenset({State.OFFERED, State.WAITING, State.CLAIMED, State.JOINED, State.READING})
"""Somebody's session is the lease; in the other states nothing is held."""

WRITABLE = frozenset({State.OFFERED, State.JOINED})
"""Blocks may still be put."""


class Party(NamedTuple):
    """One session with a worker."""

    number: int
    """Never used again by the store that gave it."""
    incarnation: str
    """Of the process at the other end; its bulk calls name it."""


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

    def facts_of_leaving(self, party: Party) -> tuple[Fact, ...]:
        """What it means here that `party` released or was lost; nothing for a stranger."""
        ends = ((self.writer, Fact.WRITER_GONE), (self.reader, Fact.READER_GONE))
        return tuple(fact for held_by, fact in ends if held_by == party)

    def hear(self, fact: Fact) -> tuple[Effect, ...]:
        """What follows from `fact`."""
        self.state, effects = TABLE[self.state, fact]
        return effects
