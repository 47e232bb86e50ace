"""The reader's end of a hand-over or a loan, as a table in which every pair of state and fact is decided.

               OPENED             WANT              THERE
    SEEKING ──────────▶ CLAIMED ────────▶ WAITING ◀───────▶ COPYING ── GIVEN_UP ──▶ STOPPING
       │ WANT                               ▲ │      COPIED    │ LOST                 │ LOST
       ▼                     OPENED         │ │ SETTLED        ▼                      ▼
    LONGING ────────────────────────────────┘ │              ADRIFT ◀─────────────────┘
                                              ▼                 │ COPIED
                                            OVER ◀──────────────┘
    SEEKING, CLAIMED ── GIVEN_UP, LOST ──▶ ENDED ── WANT ──▶ OVER

Whoever wanted something hears once that no more comes, and never while a copy runs. Whatever was said on a session is
taken back on it, unless the session is lost. Pure: knows neither messages, tasks nor clocks; moments are arguments.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from services.core.batch_events import FetchBlock
from services.core.errors import DiptychError, KVMissing
from services.core.ids import BlockHash


class State(Enum):
    SEEKING = "seeking"
    """There is no session yet, and nothing is wanted."""
    LONGING = "longing"
    """There is no session yet, and blocks are wanted."""
    CLAIMED = "claimed"
    """The store knows of the reader; nothing is wanted."""
    WAITING = "waiting"
    """Blocks are wanted, none is being copied."""
    COPYING = "copying"
    STOPPING = "stopping"
    """Given up, while a copy may run."""
    ADRIFT = "adrift"
    """As STOPPING; and the session is lost."""
    ENDED = "ended"
    """Over before anything was wanted."""
    OVER = "over"
    """No copy runs or will, and whoever wanted something was told."""


class Fact(Enum):
    OPENED = "opened"
    """There is a session with the store."""
    LOST = "lost"
    """The session ended."""
    WANT = "want"
    """The worker has said which blocks it lacks."""
    THERE = "there"
    """Some of these can be copied."""
    COPIED = "copied"
    """A batch of copies is over, well or not; none runs."""
    SETTLED = "settled"
    """Of what is wanted nothing is missing, or nothing of it will come."""
    GIVEN_UP = "given up"
    """By the worker, the store, or a patience that is over."""


class Effect(Enum):
    """What the owner has to do, in the order given."""

    ASK = "ask"
    """Tell the store who reads."""
    WANT = "want"
    """Tell the store which blocks are lacking."""
    GET = "get"
    """Copy `batch()`."""
    STOP = "stop"
    """Give up looking for a session, or copying; COPIED follows when no copy runs."""
    LEAVE = "leave"
    """Tell the store that the reader is done."""
    REPORT = "report"
    """Tell the worker that no more comes."""


class Outcome(NamedTuple):
    state: State
    effects: tuple[Effect, ...] = ()


Table = dict[tuple[State, Fact], Outcome]


def _same(state: State, *facts: Fact) -> Table:
    return {(state, fact): Outcome(state) for fact in facts}


TABLE: Table = {
    (State.SEEKING, Fact.OPENED): Outcome(State.CLAIMED, (Effect.ASK,)),
    (State.SEEKING, Fact.WANT): Outcome(State.LONGING),
    (State.SEEKING, Fact.GIVEN_UP): Outcome(State.ENDED, (Effect.STOP,)),
    (State.SEEKING, Fact.LOST): Outcome(State.ENDED, (Effect.STOP,)),
    **_same(State.SEEKING, Fact.THERE, Fact.COPIED, Fact.SETTLED),
    #
    # Also who wants nothing asks, and leaves at once: otherwise the writer would wait for a reader.
    (State.LONGING, Fact.OPENED): Outcome(State.WAITING, (Effect.ASK, Effect.WANT)),
    (State.LONGING, Fact.GIVEN_UP): Outcome(State.OVER, (Effect.STOP, Effect.REPORT)),
    (State.LONGING, Fact.LOST): Outcome(State.OVER, (Effect.STOP, Effect.REPORT)),
    **_same(State.LONGING, Fact.WANT, Fact.THERE, Fact.COPIED, Fact.SETTLED),
    #
    (State.CLAIMED, Fact.WANT): Outcome(State.WAITING, (Effect.WANT,)),
    (State.CLAIMED, Fact.GIVEN_UP): Outcome(State.ENDED, (Effect.LEAVE,)),
    (State.CLAIMED, Fact.LOST): Outcome(State.ENDED),
    **_same(State.CLAIMED, Fact.OPENED, Fact.THERE, Fact.COPIED, Fact.SETTLED),
    #
    (State.WAITING, Fact.THERE): Outcome(State.COPYING, (Effect.GET,)),
    (State.WAITING, Fact.SETTLED): Outcome(State.OVER, (Effect.LEAVE, Effect.REPORT)),
    (State.WAITING, Fact.GIVEN_UP): Outcome(State.OVER, (Effect.LEAVE, Effect.REPORT)),
    (State.WAITING, Fact.LOST): Outcome(State.OVER, (Effect.REPORT,)),
    **_same(State.WAITING, Fact.OPENED, Fact.WANT, Fact.COPIED),
    #
    (State.COPYING, Fact.COPIED): Outcome(State.WAITING),
    (State.COPYING, Fact.GIVEN_UP): Outcome(State.STOPPING, (Effect.STOP,)),
    (State.COPYING, Fact.LOST): Outcome(State.ADRIFT, (Effect.STOP,)),
    **_same(State.COPYING, Fact.OPENED, Fact.WANT, Fact.THERE, Fact.SETTLED),
    #
    (State.STOPPING, Fact.COPIED): Outcome(State.OVER, (Effect.LEAVE, Effect.REPORT)),
    (State.STOPPING, Fact.LOST): Outcome(State.ADRIFT),
    **_same(State.STOPPING, Fact.OPENED, Fact.WANT, Fact.THERE, Fact.SETTLED, Fact.GIVEN_UP),
    #
    (State.ADRIFT, Fact.COPIED): Outcome(State.OVER, (Effect.REPORT,)),
    **_same(State.ADRIFT, Fact.OPENED, Fact.WANT, Fact.THERE, Fact.SETTLED, Fact.GIVEN_UP, Fact.LOST),
    #
    (State.ENDED, Fact.WANT): Outcome(State.OVER, (Effect.REPORT,)),
    **_same(State.ENDED, Fact.OPENED, Fact.LOST, Fact.THERE, Fact.COPIED, Fact.SETTLED, Fact.GIVEN_UP),
    #
    **_same(State.OVER, *Fact),
}

COPIES = frozenset({State.COPYING, State.STOPPING, State.ADRIFT})
"""A copy may run."""

FINAL = frozenset({State.ENDED, State.OVER})


class Place(NamedTuple):
    """Where the store says that a block is."""

    generation: int
    page: int
    """-1 where the store copies."""
    checksum: int


class Reading:
    """One reader's end: its state, what it lacks and what it has heard of."""

    def __init__(self) -> None:
        self.state = State.SEEKING
        self.landed = 0
        self.bad: list[DiptychError] = []
        """For each block that will not come, why."""
        self.error: DiptychError | None = None
        """Why it ended before all had landed."""
        self.all_there_at: float | None = None
        """When the last wanted block was available."""
        self._missing: dict[BlockHash, FetchBlock] | None = None
        """Wanted, and may still land; None before anything is wanted."""
        self._there: dict[BlockHash, Place] = {}
        self._never: set[BlockHash] = set()
        """Those that the store says will not come."""
        self._batch: tuple[FetchBlock, ...] = ()
        """What is copied now, or was last."""
        self._is_complete = self._is_expected = self._is_answered = False

    @property
    def missing(self) -> Sequence[BlockHash]:
        """Wanted, and may still land."""
        return tuple(self._missing or ())

    @property
    def is_impatient(self) -> bool:
        """Whoever should have spoken by now has not: this may not last."""
        return self.state in (State.CLAIMED, State.WAITING) and self._is_expected and not self._is_answered

    @property
    def is_last_batch(self) -> bool:
        """Nothing else is missing."""
        return len(self._batch) == len(self._missing or ())

    def batch(self) -> list[tuple[FetchBlock, Place]]:
        """To be copied now."""
        return [(block, self._there[block.hash]) for block in self._batch]

    # --- what the worker says

    def want(self, blocks: Iterable[FetchBlock], now: float) -> tuple[Effect, ...]:
        """Only the first time counts."""
        if self._missing is not None:
            return ()
        self._missing = {block.hash: block for block in blocks}
        self._note_availability(now)
        return self._hear(Fact.WANT)

    def expect(self) -> None:
        """The store should have heard of the writer, or answered, by now."""
        self._is_expected = True

    def give_up(self, error: DiptychError) -> tuple[Effect, ...]:
        """Also what the store says with Closed."""
        self._note(error)
        return self._hear(Fact.GIVEN_UP)

    # --- what the session and the store say

    def opened(self) -> tuple[Effect, ...]:
        return self._hear(Fact.OPENED)

    def lost(self, error: DiptychError) -> tuple[Effect, ...]:
        self._note(error)
        return self._hear(Fact.LOST)

    def available(
        self, places: Mapping[BlockHash, Place], never: Iterable[BlockHash], is_complete: bool, now: float
    ) -> tuple[Effect, ...]:
        """Of a hand-over: there is a writer, these blocks are there, those will not come."""
        self._is_answered = True
        self._there.update(places)
        self._never.update(never)
        self._is_complete |= is_complete
        self._note_availability(now)
        return self._look()

    def lent(self, places: Mapping[BlockHash, Place], now: float) -> tuple[Effect, ...]:
        """Of a loan: this is all there is. What is not lent is not missing."""
        self._missing = {each: block for each, block in (self._missing or {}).items() if each in places}
        return self.available(places, (), True, now)

    # --- what the copies say

    def block_landed(self, block: FetchBlock) -> None:
        self.landed += 1
        self._settle(block)

    def block_failed(self, block: FetchBlock, why: DiptychError) -> None:
        """It is not what its writer wrote, or does not come."""
        self.bad.append(why)
        self._settle(block)

    def copied(self, error: DiptychError | None = None) -> tuple[Effect, ...]:
        """No copy runs any more; with an error, none will."""
        if self.state is State.COPYING and error is not None:
            self._note(error)
            self.state = TABLE[self.state, Fact.COPIED].state
            return self._hear(Fact.GIVEN_UP)
        if self.state is State.COPYING:
            for block in [each for each in self._batch if each.hash in (self._missing or ())]:
                self.block_failed(block, KVMissing("nothing came of a block"))
        return self._hear(Fact.COPIED)

    # --- private

    def _hear(self, fact: Fact) -> tuple[Effect, ...]:
        self.state, effects = TABLE[self.state, fact]
        return effects + self._look()

    def _look(self) -> tuple[Effect, ...]:
        """What follows from what is known; a fact of its own."""
        if self.state is not State.WAITING or self._missing is None:
            return ()
        for block in [block for each, block in self._missing.items() if each in self._never]:
            self.block_failed(block, KVMissing("a block of the hand-over does not come"))
        self._batch = tuple(block for each, block in self._missing.items() if each in self._there)
        if self._batch:
            return self._hear(Fact.THERE)
        if self._missing and not self._is_complete:
            return ()
        if self.bad or self._missing:
            self._note(self.bad[0] if self.bad else KVMissing("the hand-over ended without all of its blocks"))
        return self._hear(Fact.SETTLED)

    def _settle(self, block: FetchBlock) -> None:
        if self._missing is not None:
            self._missing.pop(block.hash, None)

    def _note(self, error: DiptychError) -> None:
        """The first reason stands."""
        if self.state not in FINAL:
            self.error = self.error or error

    def _note_availability(self, now: float) -> None:
        if self._missing is not None and self.all_there_at is None and self._missing.keys() <= self._there.keys():
            self.all_there_at = now
