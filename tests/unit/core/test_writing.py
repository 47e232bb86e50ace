"""The writer's tables: complete, and right where it matters."""

from itertools import product

from services.core.batch_events import SealedBlock
from services.core.errors import Overloaded, StaleHandoff, WorkerLost
from services.core.ids import BlockHash, BlockId
from services.core.writing import Page, Writing
from services.core.writing_life import (
    BLOCK_TABLE,
    COPIES,
    FINAL,
    TABLE,
    BlockEffect,
    BlockFact,
    BlockState,
    Effect,
    Fact,
    State,
)

BLOCKS = [SealedBlock(n, BlockHash(f"b{n}".encode()), BlockId(n), ()) for n in range(3)]
SAID = {Effect.OFFER, Effect.LEAVE}
READ = (BlockState.ADDED, BlockState.OFFERED, BlockState.GRANTED, BlockState.COPYING)
"""Not done."""

LENT = (BlockState.GRANTED, BlockState.COPYING, BlockState.COPIED)


def pages(*blocks: SealedBlock) -> dict[BlockHash, Page]:
    return {block.hash: Page(block.index + 1, 0) for block in blocks}


def test_every_pair_of_state_and_fact_is_decided() -> None:
    assert set(TABLE) == set(product(State, Fact))
    assert set(BLOCK_TABLE) == set(product(BlockState, BlockFact))


def test_only_the_return_of_a_copy_ends_it() -> None:
    for (state, fact), outcome in TABLE.items():
        if state in COPIES and outcome.state not in COPIES:
            assert fact is Fact.PUT_ENDED
        assert (outcome.state in COPIES and state not in COPIES) == (Effect.PUT in outcome.effects)


def test_it_ends_once_and_every_block_is_given_up_by_then() -> None:
    for (state, _), outcome in TABLE.items():
        ends = outcome.state in FINAL and state not in FINAL
        assert (Effect.END in outcome.effects) == ends
        assert not ends or Effect.DROP in outcome.effects


def test_nothing_is_said_on_a_lost_session_or_without_one() -> None:
    for (state, fact), outcome in TABLE.items():
        if fact is Fact.LOST or state is State.ADRIFT or (state is State.SEEKING and fact is not Fact.OPENED):
            assert not SAID & set(outcome.effects)


def test_a_block_is_done_when_nothing_reads_it_any_more_and_once() -> None:
    for (state, fact), outcome in BLOCK_TABLE.items():
        is_done = state in READ and outcome.state not in READ
        assert (BlockEffect.DONE in outcome.effects) == is_done
        if state is BlockState.COPYING and is_done:
            assert fact in (BlockFact.COPIED, BlockFact.FAILED, BlockFact.SEALED, BlockFact.BROKE)


def test_a_page_is_given_back_only_by_who_was_lent_one_and_copies_into_it_no_more() -> None:
    for (state, fact), outcome in BLOCK_TABLE.items():
        if BlockEffect.GIVE_BACK in outcome.effects:
            assert outcome.state is BlockState.SETTLED
            assert state in LENT or (state, fact) == (BlockState.DROPPED, BlockFact.GRANT)


def test_a_page_that_is_lent_and_not_filled_is_always_given_back() -> None:
    for (state, fact), outcome in BLOCK_TABLE.items():
        if state in LENT and outcome.state is BlockState.SETTLED:
            by_its_copier_or_store = fact in (BlockFact.SEALED, BlockFact.FAILED, BlockFact.REFUSED)
            assert by_its_copier_or_store or BlockEffect.GIVE_BACK in outcome.effects


def test_blocks_are_put_as_pages_are_granted_and_the_end_is_told_when_all_are_sealed() -> None:
    writing = Writing()
    writing.add(BLOCKS[:2])
    assert writing.opened() == (Effect.OFFER,)
    assert writing.take_offer() == (tuple(BLOCKS[:2]), False)
    assert writing.answered(pages(BLOCKS[0])) == (Effect.PUT,)
    assert writing.answered(pages(BLOCKS[1])) == ()
    assert writing.finish() == (Effect.OFFER,) and writing.take_offer() == ((), True)
    writing.copied(BLOCKS[0])
    assert writing.take_done() == BLOCKS[:1]
    assert writing.put_ended() == (Effect.PUT,)
    assert writing.put_ended() == (Effect.LEAVE, Effect.END, Effect.REPORT)
    assert (writing.num_sealed, writing.error, writing.take_done()) == (2, None, BLOCKS[1:2])


def test_a_gap_is_no_failure_of_the_rest_and_a_reader_that_has_all_none_at_all() -> None:
    writing = Writing()
    writing.opened()
    writing.add(BLOCKS[:2])
    writing.take_offer()
    writing.finish()
    writing.take_offer()
    assert writing.answered(pages(BLOCKS[0]), refused=[BLOCKS[1].hash]) == (Effect.PUT,)
    assert writing.give_up(StaleHandoff("the reader has left")) == (Effect.STOP,)
    assert writing.put_ended() == (Effect.LEAVE, Effect.END, Effect.REPORT)
    assert writing.num_sealed == 1 and isinstance(writing.error, Overloaded)


def test_what_is_granted_for_the_cache_after_it_was_given_up_is_given_back() -> None:
    writing = Writing(is_cache=True)
    writing.opened()
    writing.add(BLOCKS)
    writing.take_offer()
    assert writing.is_impatient
    assert writing.abort(WorkerLost("gone")) == (Effect.LEAVE, Effect.END)
    assert {writing.state} == {State.OWING} and writing.take_done() == BLOCKS
    writing.answered(pages(BLOCKS[0]), refused=[BLOCKS[1].hash])
    assert writing.take_given_back() == [(BLOCKS[0].hash, Page(1, 0))] and {writing.state} == {State.OWING}
    writing.answered({}, not_needed=[BLOCKS[2].hash])
    assert {writing.state} == {State.OVER} and not writing.take_done() and not writing.take_given_back()
