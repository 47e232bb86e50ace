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
            assert {Effect.WITHDRAW, Effect.RECALL} & set(outcome.effects) or outcome.state is State.READING


def test_only_a_writer_that_says_so_is_taken_to_have_stopped_copying() -> None:
    withdrawn = {pair for pair, outcome in TABLE.items() if Effect.WITHDRAW in outcome.effects}
    assert withdrawn == {(State.OFFERED, Fact.WRITER_GONE), (State.JOINED, Fact.WRITER_GONE)}
    for state in State:
        gone, lost = TABLE[state, Fact.WRITER_GONE], TABLE[state, Fact.WRITER_LOST]
        assert gone.state is lost.state
        assert [Effect.RECALL if each is Effect.WITHDRAW else each for each in gone.effects] == list(lost.effects)


def test_what_the_reader_does_not_want_is_let_go_whenever_it_says_so() -> None:
    skipping = {state for state in State if Effect.SKIP in TABLE[state, Fact.WANT].effects}
    assert skipping == {State.JOINED, State.READING}
    handoff = handoff_in(State.NEW)
    handoff.claim(READER)
    assert handoff.want(READER) == ()
    assert handoff.want(STRANGER) == (Effect.REFUSE,)
    handoff.offer(WRITER)
    assert handoff.want(READER) == (Effect.SKIP,)
    assert handoff.want(WRITER) == (Effect.REFUSE,)


def test_no_fact_but_a_late_claim_revives_a_hand_over() -> None:
    revived = {pair for pair, outcome in TABLE.items() if pair[0] not in LIVE and outcome.state in LIVE}
    assert revived == {(State.NEW, Fact.CLAIM), (State.NEW, Fact.OFFER), (State.LEFT, Fact.CLAIM)}


@pytest.mark.parametrize("state", sorted(State, key=lambda state: state.value))
def test_a_closed_hand_over_is_never_reached_by_the_writer_alone(state: State) -> None:
    for fact in set(Fact) - {Fact.CLAIM, Fact.WANT, Fact.READER_GONE}:
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
    assert handoff.facts_of_leaving(WRITER, is_lost=True) == (Fact.WRITER_LOST,)
    assert handoff.hear(Fact.WRITER_LOST) == (Effect.RECALL, Effect.TELL_READER)
    assert handoff.state is State.READING
    assert handoff.offer(WRITER) == (Effect.REFUSE,)


def test_the_loss_of_the_reader_closes_and_refuses_the_writer() -> None:
    handoff = handoff_in(State.NEW)
    handoff.offer(WRITER)
    handoff.claim(READER)
    effects = handoff.hear(*handoff.facts_of_leaving(READER, is_lost=True))
    assert effects == (Effect.TELL_WRITER, Effect.RECALL, Effect.UNPIN)
    assert handoff.offer(WRITER) == (Effect.REFUSE,)


def test_a_stranger_that_leaves_means_nothing_and_one_with_both_ends_leaves_both() -> None:
    handoff = handoff_in(State.NEW)
    handoff.offer(WRITER)
    assert handoff.facts_of_leaving(STRANGER, is_lost=False) == ()
    handoff.claim(WRITER)
    assert handoff.facts_of_leaving(WRITER, is_lost=False) == (Fact.WRITER_GONE, Fact.READER_GONE)
    assert handoff.facts_of_leaving(WRITER, is_lost=True) == (Fact.WRITER_LOST, Fact.READER_GONE)


def test_a_party_is_the_same_whether_it_is_known_to_be_near_or_not() -> None:
    assert Party(1, "w") == Party(1, "w", is_near=True) != Party(2, "w", is_near=True)
