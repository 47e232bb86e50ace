"""The writer's end of a hand-over, or of blocks for the cache, as two tables in which every pair of state and fact is
decided: one for the whole, one for each block.

               OPENED           GRANTED
    SEEKING ──────────▶ OPEN ◀─────────▶ PUTTING
       │ GIVEN_UP        │ │ PUT_ENDED      │ GIVEN_UP
       │                 │ │ SETTLED        ▼
       │    GIVEN_UP ────┘ │             STOPPING ─── LOST ──▶ ADRIFT
       │        ▼          │                │ PUT_ENDED           │ PUT_ENDED
       │      OWING ◀──────┴────────────────┘                     │
       └──────▶ OVER ◀── PAID, LOST ──────────────────────────────┘

    a block:  ADDED ──▶ OFFERED ──▶ GRANTED ──▶ COPYING ──▶ COPIED ──▶ SETTLED
                           └─ DROP ─▶ DROPPED ── answered ──────────────┘

Each block is done once: as soon as nothing reads it any more. A grant that is not used is given back; whoever has
offered blocks for the cache, where no release settles them, stays for the store's answers: OWING.

`core/writing.py` does what follows from a fact.
"""

from enum import Enum
from typing import NamedTuple


class State(Enum):
    SEEKING = "seeking"
    """There is no session yet."""
    OPEN = "open"
    """Blocks are offered, none is being put."""
    PUTTING = "putting"
    STOPPING = "stopping"
    """Given up, while a copy may run."""
    ADRIFT = "adrift"
    """As STOPPING; and the session is lost."""
    OWING = "owing"
    """No copy runs or will; the store has still to answer, and what it grants is given back."""
    OVER = "over"


class Fact(Enum):
    OPENED = "opened"
    """There is a session with the store."""
    LOST = "lost"
    """The session ended."""
    MORE = "more"
    """Blocks were added, or it was said that no more will be."""
    GRANTED = "granted"
    """The store has pages for some."""
    PUT_ENDED = "put ended"
    """A batch of copies is over, well or not; none runs."""
    SETTLED = "settled"
    """No more will be added, that was said to the store, and what has become of each block is known."""
    GIVEN_UP = "given up"
    """By the worker, the store, or a patience that is over."""
    PAID = "paid"
    """No answer of the store is outstanding."""


class Effect(Enum):
    """What the owner has to do, in the order given."""

    OFFER = "offer"
    """Tell the store of what it has not heard."""
    PUT = "put"
    """Copy the batch."""
    STOP = "stop"
    """Give up looking for a session, or copying; PUT_ENDED follows when no copy runs."""
    DROP = "drop"
    """Give up each block."""
    LEAVE = "leave"
    """Tell the store that the writer is done."""
    END = "end"
    """What has become of it is known."""
    REPORT = "report"
    """Tell the worker, which has said that no more will be added and has not given it up."""


class Outcome(NamedTuple):
    state: State
    effects: tuple[Effect, ...] = ()


Table = dict[tuple[State, Fact], Outcome]


def _same(state: State, *facts: Fact) -> Table:
    return {(state, fact): Outcome(state) for fact in facts}


_LEAVING = (Effect.DROP, Effect.LEAVE, Effect.END)

TABLE: Table = {
    (State.SEEKING, Fact.OPENED): Outcome(State.OPEN, (Effect.OFFER,)),
    (State.SEEKING, Fact.GIVEN_UP): Outcome(State.OVER, (Effect.STOP, Effect.DROP, Effect.END)),
    (State.SEEKING, Fact.LOST): Outcome(State.OVER, (Effect.STOP, Effect.DROP, Effect.END)),
    **_same(State.SEEKING, Fact.MORE, Fact.GRANTED, Fact.PUT_ENDED, Fact.SETTLED, Fact.PAID),
    #
    (State.OPEN, Fact.MORE): Outcome(State.OPEN, (Effect.OFFER,)),
    (State.OPEN, Fact.GRANTED): Outcome(State.PUTTING, (Effect.PUT,)),
    (State.OPEN, Fact.SETTLED): Outcome(State.OWING, _LEAVING),
    (State.OPEN, Fact.GIVEN_UP): Outcome(State.OWING, _LEAVING),
    (State.OPEN, Fact.LOST): Outcome(State.OVER, (Effect.DROP, Effect.END)),
    **_same(State.OPEN, Fact.OPENED, Fact.PUT_ENDED, Fact.PAID),
    #
    (State.PUTTING, Fact.MORE): Outcome(State.PUTTING, (Effect.OFFER,)),
    (State.PUTTING, Fact.PUT_ENDED): Outcome(State.OPEN),
    (State.PUTTING, Fact.GIVEN_UP): Outcome(State.STOPPING, (Effect.STOP, Effect.DROP)),
    (State.PUTTING, Fact.LOST): Outcome(State.ADRIFT, (Effect.STOP, Effect.DROP)),
    **_same(State.PUTTING, Fact.OPENED, Fact.GRANTED, Fact.SETTLED, Fact.PAID),
    #
    (State.STOPPING, Fact.PUT_ENDED): Outcome(State.OWING, _LEAVING),
    (State.STOPPING, Fact.LOST): Outcome(State.ADRIFT),
    **_same(State.STOPPING, Fact.OPENED, Fact.MORE, Fact.GRANTED, Fact.SETTLED, Fact.GIVEN_UP, Fact.PAID),
    #
    (State.ADRIFT, Fact.PUT_ENDED): Outcome(State.OVER, (Effect.DROP, Effect.END)),
    **_same(State.ADRIFT, Fact.OPENED, Fact.MORE, Fact.GRANTED, Fact.SETTLED, Fact.GIVEN_UP, Fact.LOST, Fact.PAID),
    #
    (State.OWING, Fact.PAID): Outcome(State.OVER),
    (State.OWING, Fact.LOST): Outcome(State.OVER),
    **_same(State.OWING, Fact.OPENED, Fact.MORE, Fact.GRANTED, Fact.PUT_ENDED, Fact.SETTLED, Fact.GIVEN_UP),
    #
    **_same(State.OVER, *Fact),
}

COPIES = frozenset({State.PUTTING, State.STOPPING, State.ADRIFT})
"""A copy may run."""

FINAL = frozenset({State.OWING, State.OVER})
"""What has become of it is known."""

TAKING = frozenset({State.SEEKING, State.OPEN, State.PUTTING})
"""Blocks that are added may still be put."""


class BlockState(Enum):
    ADDED = "added"
    """The store has not heard of it."""
    OFFERED = "offered"
    """The store has not answered."""
    GRANTED = "granted"
    """It has a page."""
    COPYING = "copying"
    COPIED = "copied"
    """Nothing reads it any more; whether it is sealed is not known."""
    DROPPED = "dropped"
    """Given up; the store's answer is outstanding."""
    SETTLED = "settled"


class BlockFact(Enum):
    OFFER = "offer"
    """The store is told of it."""
    GRANT = "grant"
    """The store has a page for it."""
    REFUSED = "refused"
    """The store has none, or it came too late."""
    NOT_NEEDED = "not needed"
    """The store has it, or nobody wants it."""
    PUT = "put"
    """It is in the batch that is copied now."""
    COPIED = "copied"
    """Its copy has returned."""
    FAILED = "failed"
    """It was not sealed, says whoever copied it."""
    SEALED = "sealed"
    """The batch is over, and well."""
    DROP = "drop"
    """The whole is given up, or its batch broke. None of its copies runs, unless it is COPYING or COPIED."""
    BROKE = "broke"
    """Its batch is over, and not well; none of its copies runs."""


class BlockEffect(Enum):
    DONE = "done"
    """Nothing reads it any more."""
    GIVE_BACK = "give back"
    """Its page was lent and nothing was, or will be, copied into it."""


class BlockOutcome(NamedTuple):
    state: BlockState
    effects: tuple[BlockEffect, ...] = ()


BlockTable = dict[tuple[BlockState, BlockFact], BlockOutcome]


def _stays(state: BlockState, *facts: BlockFact) -> BlockTable:
    return {(state, fact): BlockOutcome(state) for fact in facts}


def _settled(state: BlockState, *facts: BlockFact, effects: tuple[BlockEffect, ...] = ()) -> BlockTable:
    return {(state, fact): BlockOutcome(BlockState.SETTLED, effects) for fact in facts}


_COPYING_FACTS = (BlockFact.COPIED, BlockFact.FAILED, BlockFact.SEALED, BlockFact.BROKE)
_DONE = (BlockEffect.DONE,)
_ANSWERS = (BlockFact.GRANT, BlockFact.REFUSED, BlockFact.NOT_NEEDED)

BLOCK_TABLE: BlockTable = {
    (BlockState.ADDED, BlockFact.OFFER): BlockOutcome(BlockState.OFFERED),
    **_settled(BlockState.ADDED, BlockFact.DROP, effects=_DONE),
    # What is said of the same block to another under the same key.
    **_stays(BlockState.ADDED, *_ANSWERS, BlockFact.PUT, *_COPYING_FACTS),
    #
    (BlockState.OFFERED, BlockFact.GRANT): BlockOutcome(BlockState.GRANTED),
    (BlockState.OFFERED, BlockFact.DROP): BlockOutcome(BlockState.DROPPED, _DONE),
    **_settled(BlockState.OFFERED, BlockFact.REFUSED, BlockFact.NOT_NEEDED, effects=_DONE),
    **_stays(BlockState.OFFERED, BlockFact.OFFER, BlockFact.PUT, *_COPYING_FACTS),
    #
    (BlockState.GRANTED, BlockFact.PUT): BlockOutcome(BlockState.COPYING),
    **_settled(BlockState.GRANTED, BlockFact.REFUSED, effects=_DONE),
    **_settled(
        BlockState.GRANTED, BlockFact.NOT_NEEDED, BlockFact.DROP, effects=(BlockEffect.GIVE_BACK, BlockEffect.DONE)
    ),
    **_stays(BlockState.GRANTED, BlockFact.OFFER, BlockFact.GRANT, *_COPYING_FACTS),
    #
    # Whatever is heard of it, it is done only when its copy is.
    (BlockState.COPYING, BlockFact.COPIED): BlockOutcome(BlockState.COPIED, _DONE),
    **_settled(BlockState.COPYING, BlockFact.FAILED, BlockFact.SEALED, effects=_DONE),
    **_settled(BlockState.COPYING, BlockFact.BROKE, effects=(BlockEffect.GIVE_BACK, BlockEffect.DONE)),
    **_stays(BlockState.COPYING, BlockFact.OFFER, BlockFact.PUT, BlockFact.DROP, *_ANSWERS),
    #
    **_settled(BlockState.COPIED, BlockFact.FAILED, BlockFact.SEALED),
    **_settled(BlockState.COPIED, BlockFact.BROKE, effects=(BlockEffect.GIVE_BACK,)),
    **_stays(BlockState.COPIED, BlockFact.OFFER, BlockFact.PUT, BlockFact.COPIED, BlockFact.DROP, *_ANSWERS),
    #
    **_settled(BlockState.DROPPED, BlockFact.GRANT, effects=(BlockEffect.GIVE_BACK,)),
    **_settled(BlockState.DROPPED, BlockFact.REFUSED, BlockFact.NOT_NEEDED),
    **_stays(BlockState.DROPPED, BlockFact.OFFER, BlockFact.PUT, BlockFact.DROP, *_COPYING_FACTS),
    #
    **_stays(BlockState.SETTLED, *BlockFact),
}
