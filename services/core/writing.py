"""One writer's end: its state, its blocks' states, and what became of them. The tables are in `core/writing_life.py`.

Pure: knows neither messages, tasks nor clocks.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from services.core.batch_events import SealedBlock
from services.core.errors import DiptychError, Overloaded
from services.core.ids import BlockHash
from services.core.writing_life import (
    BLOCK_TABLE,
    FINAL,
    TABLE,
    TAKING,
    BlockEffect,
    BlockFact,
    BlockState,
    Effect,
    Fact,
    State,
)

_ENDS = (BlockState.SETTLED, BlockState.DROPPED)
"""What has become of the block is known."""


class Page(NamedTuple):
    """Lent for a block."""

    generation: int
    page: int
    """-1 where the store copies."""


class Offer(NamedTuple):
    """What the store has not heard of."""

    blocks: tuple[SealedBlock, ...]
    is_complete: bool
    """No more will follow; said once."""


class Writing:
    """Every verb is legal at any time and returns what the owner has to do, in this order; then `take_done`, and while
    there is a session `take_given_back`, say what else follows."""

    def __init__(self, *, is_cache: bool = False) -> None:
        self.state = State.SEEKING
        self.is_cache = is_cache
        self.is_aborted = False
        self.num_sealed = self.num_skipped = self.num_dropped = 0
        self.gaps: list[DiptychError] = []
        """For each block that was not sealed by itself, why."""
        self._blocks: dict[BlockHash, SealedBlock] = {}
        self._states: dict[BlockHash, BlockState] = {}
        self._unsettled: dict[BlockHash, None] = {}
        """In the order in which they were added."""
        self._owed: set[BlockHash] = set()
        """DROPPED: the store's answer is outstanding."""
        self._granted: dict[BlockHash, Page] = {}
        self._batch: dict[BlockHash, Page] = {}
        """What is copied now, or was last."""
        self._done: list[SealedBlock] = []
        self._given_back: list[tuple[BlockHash, Page]] = []
        self._unoffered: list[SealedBlock] = []
        self._is_finished = self._was_said = self._was_reported = self._has_session = False
        self._error: DiptychError | None = None

    @property
    def num_unsealed(self) -> int:
        return len(self._unsettled)

    @property
    def hashes(self) -> frozenset[BlockHash]:
        """Of the blocks that it took."""
        return frozenset(self._blocks)

    @property
    def error(self) -> DiptychError | None:
        """Why not all are sealed."""
        gap = self.gaps[0] if self.gaps else None
        # A reader may leave, and close the hand-over, as soon as it has the last block.
        is_whole = self._was_said and not self.num_dropped and not self._unsettled
        return gap if is_whole else self._error or gap

    @property
    def is_impatient(self) -> bool:
        """The store should have answered by now: this may not last, for whoever keeps blocks pinned for a cache."""
        is_waiting = self.is_cache and self.state is State.OPEN
        return is_waiting and any(self._states[each] is BlockState.OFFERED for each in self._unsettled)

    def batch(self) -> list[tuple[SealedBlock, Page]]:
        """To be copied now."""
        return [(self._blocks[each], page) for each, page in self._batch.items()]

    def take_offer(self) -> Offer:
        """On OFFER."""
        is_complete = self._is_finished and not self._was_said
        self._was_said |= is_complete
        offer, self._unoffered = Offer(tuple(self._unoffered), is_complete), []
        for block in offer.blocks:
            self._tell(block.hash, BlockFact.OFFER)
        return offer

    def take_done(self) -> list[SealedBlock]:
        """Blocks that nothing reads any more; each block added is among them once."""
        done, self._done = self._done, []
        return done

    def take_given_back(self) -> list[tuple[BlockHash, Page]]:
        """Pages to be given back."""
        given_back, self._given_back = self._given_back, []
        return given_back

    # --- what the worker says

    def add(self, blocks: Iterable[SealedBlock]) -> tuple[Effect, ...]:
        """One whose hash was added before, or that comes too late, is done at once."""
        for block in blocks:
            if block.hash in self._blocks or self.state not in TAKING or self._is_finished:
                self._done.append(block)
                continue
            self._blocks[block.hash], self._states[block.hash] = block, BlockState.ADDED
            self._unsettled[block.hash] = None
            self._unoffered.append(block)
        return self._hear(Fact.MORE)

    def finish(self) -> tuple[Effect, ...]:
        """No more will be added."""
        self._is_finished = True
        return self._hear(Fact.MORE) + self._reported()

    def abort(self, error: DiptychError) -> tuple[Effect, ...]:
        """The request is gone."""
        self.is_aborted = True
        return self.give_up(error)

    def give_up(self, error: DiptychError) -> tuple[Effect, ...]:
        """Also what the store says with Closed."""
        self._note(error)
        return self._hear(Fact.GIVEN_UP)

    # --- what the session and the store say

    def opened(self) -> tuple[Effect, ...]:
        self._has_session = True
        return self._hear(Fact.OPENED)

    def lost(self, error: DiptychError) -> tuple[Effect, ...]:
        self._has_session = False
        self._owed.clear()
        self._note(error)
        return self._hear(Fact.LOST)

    def answered(
        self,
        pages: Mapping[BlockHash, Page],
        refused: Iterable[BlockHash] = (),
        not_needed: Iterable[BlockHash] = (),
    ) -> tuple[Effect, ...]:
        """What becomes of offered blocks."""
        for each, page in pages.items():
            if self._states.get(each) is BlockState.OFFERED:
                self._granted[each] = page
            self._tell(each, BlockFact.GRANT, page=page)
        for each in refused:
            self._tell(each, BlockFact.REFUSED, Overloaded("every block of the store is in use"))
        for each in not_needed:
            self._tell(each, BlockFact.NOT_NEEDED)
        return self._look()

    # --- what the copies say

    def copied(self, block: SealedBlock) -> None:
        """Nothing reads it any more."""
        self._tell(block.hash, BlockFact.COPIED)

    def failed(self, block: SealedBlock, why: DiptychError) -> None:
        """It was not sealed; others may be."""
        self._tell(block.hash, BlockFact.FAILED, why)

    def put_ended(self, error: DiptychError | None = None) -> tuple[Effect, ...]:
        """No copy runs any more; with an error, none will."""
        for each in self._batch:
            self._tell(each, BlockFact.SEALED if error is None else BlockFact.BROKE)
        if error is not None and self.state is State.PUTTING:
            self._note(error)
            self.state = TABLE[self.state, Fact.PUT_ENDED].state
            return self._hear(Fact.GIVEN_UP)
        return self._hear(Fact.PUT_ENDED)

    # --- private

    def _hear(self, fact: Fact) -> tuple[Effect, ...]:
        self.state, effects = TABLE[self.state, fact]
        if Effect.DROP in effects:
            for each in tuple(self._unsettled):
                self._tell(each, BlockFact.DROP)
        told = tuple(effect for effect in effects if effect is not Effect.DROP)
        return told + (self._reported() if Effect.END in effects else ()) + self._look()

    def _reported(self) -> tuple[Effect, ...]:
        if self.state not in FINAL or not self._is_finished or self.is_aborted or self._was_reported:
            return ()
        self._was_reported = True
        return (Effect.REPORT,)

    def _look(self) -> tuple[Effect, ...]:
        """What follows from what is known; a fact of its own."""
        if self.state is State.OWING and not (self.is_cache and self._owed):
            return self._hear(Fact.PAID)
        if self.state is not State.OPEN:
            return ()
        if self._granted:
            self._batch, self._granted = self._granted, {}
            for each in self._batch:
                self._tell(each, BlockFact.PUT)
            return self._hear(Fact.GRANTED)
        # What is to be said first, the effects before this say.
        if self._is_finished and not self._unsettled:
            return self._hear(Fact.SETTLED)
        return ()

    def _tell(
        self, block_hash: BlockHash, fact: BlockFact, why: DiptychError | None = None, page: Page | None = None
    ) -> None:
        before = self._states.get(block_hash, BlockState.SETTLED)
        after, effects = BLOCK_TABLE[before, fact]
        if before is BlockState.SETTLED:
            return
        self._states[block_hash] = after
        lent = page or self._granted.get(block_hash) or self._batch.get(block_hash)
        if BlockEffect.GIVE_BACK in effects and lent and self._has_session:
            self._given_back.append((block_hash, lent))
        if BlockEffect.DONE in effects:
            self._done.append(self._blocks[block_hash])
        if after in _ENDS:
            self._granted.pop(block_hash, None)
            if block_hash in self._unsettled:
                del self._unsettled[block_hash]
                self._count(fact, why)
        self._note_debt(block_hash, after)

    def _note_debt(self, block_hash: BlockHash, state: BlockState) -> None:
        if state is BlockState.DROPPED:
            self._owed.add(block_hash)
        else:
            self._owed.discard(block_hash)

    def _count(self, fact: BlockFact, why: DiptychError | None) -> None:
        match fact:
            case BlockFact.SEALED:
                self.num_sealed += 1
            case BlockFact.NOT_NEEDED:
                self.num_skipped += 1
            case BlockFact.REFUSED | BlockFact.FAILED if why:
                self.gaps.append(why)
            case _:
                self.num_dropped += 1

    def _note(self, error: DiptychError) -> None:
        """The first reason stands."""
        if self.state not in FINAL:
            self._error = self._error or error
