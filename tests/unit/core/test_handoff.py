"""The hand-over's table: complete, and right where it matters."""

from itertools import product

import pytest

from services.core.handoff import LIVE, TABLE, WRITABLE, Effect, Fact, Handoff, Party, State
from services.core.ids import RequestId, RequestKey

WRITER, READER, STRANGER = Party(1, "prefill"), Party(2, "decode"), Party(3, "other")


def handoff_in(state: State) -> Handoff:
    handoff = Handoff(RequestKey(RequestId("r")), since=0.0)
    handoff.state = state
    return handoff


def test_every_pair_of_state_and_fact_is_decided() -> None:
    assert set(TABLE) == set(product(State, Fact))


def test_a_refusal_changes_nothing_and_comes_alone() -> None:
    for (state, _), outcome in TABLE.items():
        if Effect.REFUSE in outcome.effects:
            assert outcome.effects == (Effect.REFUSE,)
            assert outcome.state is state


def test_pins_are_dropped_whenever_nobody_is_left_to_hold_them() -> None:
    for (state, _), outcome in TABLE.items():
        if state in LIVE - {State.CLAIMED} and outcome.state not in LIVE:
            assert Effect.UNPIN in outcome.effects
        if state in WRITABLE and outcome.state not in WRITABLE | {State.WAITING}:
            assert Effect.WITHDRAW in outcome.effects or outcome.state is State.READING


def test_no_fact_but_a_late_claim_revives_a_hand_over() -> None:
    revived = {pair for pair, outcome in TABLE.items() if pair[0] not in LIVE and outcome.state in LIVE}
    assert revived == {(State.NEW, Fact.CLAIM), (State.NEW, Fact.OFFER), (State.LEFT, Fact.CLAIM)}


@pytest.mark.parametrize("state", sorted(State, key=lambda state: state.value))
def test_a_closed_hand_over_is_never_reached_by_the_writer_alone(state: State) -> None:
    for fact in (Fact.OFFER, Fact.SEALED, Fact.COMPLETE, Fact.WRITER_GONE):
        assert TABLE[state, fact].state is not State.CLOSED or state is State.CLOSED


def test_claim_and_offer_may_come_in_either_order() -> None:
    early, late = handoff_in(State.NEW), handoff_in(State.NEW)
    early.claim(READER)
    early.offer(WRITER)
    late.offer(WRITER)
    late.claim(READER)
    assert early.state is late.state is State.JOINED
    assert (early.writer, early.reader) == (late.writer, late.reader) == (WRITER, READER)


def test_an_end_that_is_taken_is_refused_to_others_and_open_to_its_holder() -> None:
    handoff = handoff_in(State.NEW)
    handoff.claim(READER)
    handoff.offer(WRITER)
    assert handoff.claim(STRANGER) == handoff.offer(STRANGER) == (Effect.REFUSE,)
    assert Effect.REFUSE not in (*handoff.claim(READER), *handoff.offer(WRITER))
    assert handoff.state is State.JOINED


def test_the_loss_of_the_writer_leaves_the_reader_what_is_sealed() -> None:
    handoff = handoff_in(State.NEW)
    handoff.claim(READER)
    handoff.offer(WRITER)
    assert handoff.facts_of_leaving(WRITER) == (Fact.WRITER_GONE,)
    assert handoff.hear(Fact.WRITER_GONE) == (Effect.WITHDRAW, Effect.TELL_READER)
    assert handoff.state is State.READING
    assert handoff.offer(WRITER) == (Effect.REFUSE,)


def test_the_loss_of_the_reader_closes_and_refuses_the_writer() -> None:
    handoff = handoff_in(State.NEW)
    handoff.offer(WRITER)
    handoff.claim(READER)
    effects = handoff.hear(*handoff.facts_of_leaving(READER))
    assert effects == (Effect.TELL_WRITER, Effect.WITHDRAW, Effect.UNPIN)
    assert handoff.offer(WRITER) == (Effect.REFUSE,)


def test_a_stranger_that_leaves_means_nothing_and_one_with_both_ends_leaves_both() -> None:
    handoff = handoff_in(State.NEW)
    handoff.offer(WRITER)
    assert handoff.facts_of_leaving(STRANGER) == ()
    handoff.claim(WRITER)
    assert handoff.facts_of_leaving(WRITER) == (Fact.WRITER_GONE, Fact.READER_GONE)
