"""The reader's table: complete, and right where it matters."""

from itertools import product

from services.core.batch_events import FetchBlock
from services.core.errors import KVMissing
from services.core.ids import BlockHash, BlockId
from services.core.reading import COPIES, FINAL, TABLE, Effect, Fact, Place, Reading, State

BLOCKS = [FetchBlock(n, BlockHash(f"b{n}".encode()), BlockId(n)) for n in range(3)]
SAID = {Effect.ASK, Effect.WANT, Effect.LEAVE}


def places(*blocks: FetchBlock) -> dict[BlockHash, Place]:
    return {block.hash: Place(1, 2, 3) for block in blocks}


def test_every_pair_of_state_and_fact_is_decided() -> None:
    assert set(TABLE) == set(product(State, Fact))


def test_only_the_return_of_a_copy_ends_it() -> None:
    for (state, fact), outcome in TABLE.items():
        if state in COPIES and outcome.state not in COPIES:
            assert fact is Fact.COPIED
        assert (outcome.state in COPIES and state not in COPIES) == (Effect.GET in outcome.effects)


def test_it_is_told_exactly_when_what_is_wanted_is_over() -> None:
    for (state, _), outcome in TABLE.items():
        assert (Effect.REPORT in outcome.effects) == (outcome.state is State.OVER and state is not State.OVER)


def test_nothing_is_said_on_a_lost_session_or_without_one() -> None:
    for (state, fact), outcome in TABLE.items():
        if (
            fact is Fact.LOST
            or state is State.ADRIFT
            or (state in (State.SEEKING, State.LONGING) and fact is not Fact.OPENED)
        ):
            assert not SAID & set(outcome.effects)


def test_what_was_asked_is_taken_back_on_every_exit() -> None:
    for (state, fact), outcome in TABLE.items():
        has_asked = state in (State.CLAIMED, State.WAITING, State.COPYING, State.STOPPING)
        if has_asked and outcome.state in FINAL and fact is not Fact.LOST:
            assert Effect.LEAVE in outcome.effects


def test_blocks_are_got_as_they_come_and_the_end_is_told_after_the_last() -> None:
    reading = Reading()
    assert reading.opened() == (Effect.ASK,)
    assert reading.want(BLOCKS, 1.0) == (Effect.WANT,)
    assert reading.available(places(BLOCKS[0]), (), False, 2.0) == (Effect.GET,)
    assert [block for block, _ in reading.batch()] == BLOCKS[:1] and not reading.is_last_batch
    assert reading.available(places(*BLOCKS[1:]), (), True, 3.0) == ()
    reading.block_landed(BLOCKS[0])
    assert reading.copied() == (Effect.GET,) and reading.is_last_batch
    reading.block_landed(BLOCKS[1])
    reading.block_landed(BLOCKS[2])
    assert reading.copied() == (Effect.LEAVE, Effect.REPORT)
    assert (reading.landed, reading.error, reading.all_there_at) == (3, None, 3.0)


def test_what_will_not_come_is_not_waited_for() -> None:
    reading = Reading()
    reading.opened()
    reading.want(BLOCKS[:2], 1.0)
    assert reading.available({}, [BLOCKS[0].hash], False, 2.0) == ()
    assert reading.missing == (BLOCKS[1].hash,)
    assert reading.available({}, (), True, 2.0) == (Effect.LEAVE, Effect.REPORT)
    assert isinstance(reading.error, KVMissing)


def test_what_is_not_lent_is_nothing_that_went_wrong() -> None:
    reading = Reading()
    reading.want(BLOCKS, 0.0)
    reading.expect()
    assert reading.opened() == (Effect.ASK, Effect.WANT) and reading.is_impatient
    assert reading.lent(places(BLOCKS[0]), 1.0) == (Effect.GET,) and not reading.is_impatient
    reading.block_landed(BLOCKS[0])
    assert reading.copied() == (Effect.LEAVE, Effect.REPORT)
    assert (reading.landed, reading.error, reading.missing) == (1, None, ())
