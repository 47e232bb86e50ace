"""The table of a block's life: complete, and right where it matters."""

from itertools import product

from services.core.block_life import IN_WRITING, TABLE, BlockEffect, BlockFact, BlockState

PAGELESS = {BlockState.ABSENT}


def test_every_pair_of_state_and_fact_is_decided() -> None:
    assert set(TABLE) == set(product(BlockState, BlockFact))


def test_a_refusal_or_a_miss_changes_nothing_and_comes_alone() -> None:
    for (state, _), outcome in TABLE.items():
        for effect in (BlockEffect.REFUSE, BlockEffect.MISS):
            if effect in outcome.effects:
                assert outcome.effects == (effect,) and outcome.state is state


def test_a_page_is_given_back_exactly_when_the_block_ends() -> None:
    for (state, _), outcome in TABLE.items():
        ends = state not in PAGELESS and outcome.state in PAGELESS
        back = {BlockEffect.FREE, BlockEffect.QUARANTINE} & set(outcome.effects)
        assert len(back) == (1 if ends else 0)


def test_only_the_loss_of_a_writer_at_work_quarantines() -> None:
    quarantines = {pair for pair, outcome in TABLE.items() if BlockEffect.QUARANTINE in outcome.effects}
    assert quarantines == {(state, BlockFact.WRITER_LOST) for state in IN_WRITING}


def test_a_page_that_a_writer_has_is_not_given_back_but_by_its_word_or_its_loss() -> None:
    for (state, fact), outcome in TABLE.items():
        if state in IN_WRITING and outcome.state not in IN_WRITING:
            assert fact in (BlockFact.WRITTEN, BlockFact.FAILED, BlockFact.WRITER_LOST)


def test_a_block_is_sealed_once_and_only_by_its_writer() -> None:
    sealing = {pair for pair, outcome in TABLE.items() if outcome.state is BlockState.SEALED is not pair[0]}
    assert sealing == {(state, BlockFact.WRITTEN) for state in IN_WRITING}


def test_those_who_wait_are_served_or_asked_again_whenever_a_writer_is_done() -> None:
    for (state, _), outcome in TABLE.items():
        if state in IN_WRITING and outcome.state not in IN_WRITING:
            assert {BlockEffect.PIN_WAITING, BlockEffect.PASS_ON} & set(outcome.effects)


def test_only_sealed_blocks_are_found_by_readers_and_a_doomed_one_is_hidden() -> None:
    for state in BlockState:
        missed = BlockEffect.MISS in TABLE[state, BlockFact.PIN].effects
        assert missed == (state is not BlockState.SEALED)
    for pair, outcome in TABLE.items():
        if outcome.state is BlockState.DOOMED is not pair[0]:
            assert BlockEffect.HIDE in outcome.effects
