"""Hand-overs over the index: what is told to whom."""

from services.core.errors import StaleHandoff
from services.core.handoff import Party
from services.core.ids import BlockHash, RequestId, RequestKey
from services.kvstore.block_index import BlockIndex
from services.kvstore.exchange import REMEMBERED, Exchange, Offer
from services.kvstore.notices import Available, Closed, Notice, Wanted

R, S = (RequestKey(RequestId(name)) for name in "rs")
WRITER, OTHER, READER = Party(1, "w"), Party(2, "o"), Party(3, "r")
X, Y = BlockHash(b"x"), BlockHash(b"y")


def exchange() -> Exchange:
    return Exchange(BlockIndex(8))


def seal(store: Exchange, party: Party, key: RequestKey, block_hash: BlockHash) -> list[Notice]:
    return store.seal(store.begin(key, party.incarnation, block_hash), checksum=1)


def test_an_offer_is_answered_with_what_is_wanted_and_what_is_there() -> None:
    store = exchange()
    assert store.offer(WRITER, Offer(R, 0, [X]), 0.0) == [Wanted(WRITER, R, (X,))]
    seal(store, WRITER, R, X)
    assert store.offer(OTHER, Offer(S, 0, [X, Y]), 0.0) == [
        Wanted(OTHER, S, (Y,)),
        Available(OTHER, S, ((0, X),)),
    ]


def test_the_reader_hears_of_each_block_once_and_of_the_end_with_the_last() -> None:
    store = exchange()
    store.claim(READER, R, 0.0)
    store.offer(WRITER, Offer(R, 0, [X, Y], is_complete=True), 0.0)
    assert seal(store, WRITER, R, X) == [Available(READER, R, ((0, X),))]
    assert seal(store, WRITER, R, Y) == [Available(READER, R, ((1, Y),)), Available(READER, R, (), True)]
    assert store.claim(READER, R, 0.0) == []


def test_a_reader_that_waits_hears_that_the_writer_has_come() -> None:
    store = exchange()
    store.claim(READER, R, 0.0)
    notices = store.offer(WRITER, Offer(R, 0, [X]), 0.0)
    assert notices == [Available(READER, R, ()), Wanted(WRITER, R, (X,))]


def test_a_late_reader_hears_everything_at_once() -> None:
    store = exchange()
    store.offer(WRITER, Offer(R, 3, [X, Y], is_complete=True), 0.0)
    seal(store, WRITER, R, X)
    seal(store, WRITER, R, Y)
    store.release(WRITER, R)
    assert store.index.num_pins == 0 and not store.live()
    assert store.claim(READER, R, 0.0) == [Available(READER, R, ((3, X), (4, Y)), True)]
    assert store.index.num_pins == 2


def test_a_writer_that_is_lost_leaves_the_reader_the_end_and_what_is_sealed() -> None:
    store = exchange()
    store.claim(READER, R, 0.0)
    store.offer(WRITER, Offer(R, 0, [X, Y]), 0.0)
    seal(store, WRITER, R, X)
    assert store.lost(WRITER) == [Available(READER, R, (), True)]
    assert store.readable(R, READER.incarnation, X).checksum == 1
    assert not store.index.unsettled()


def test_a_reader_that_leaves_closes_the_hand_over_for_its_writer() -> None:
    store = exchange()
    store.claim(READER, R, 0.0)
    store.offer(WRITER, Offer(R, 0, [X]), 0.0)
    (closed,) = store.release(READER, R)
    assert isinstance(closed, Closed) and closed.to == WRITER and isinstance(closed.error, StaleHandoff)
    (refused,) = store.offer(WRITER, Offer(R, 1, [Y]), 0.0)
    assert isinstance(refused, Closed) and refused.to == WRITER
    store.check_invariants()


def test_a_block_that_failed_is_not_waited_for() -> None:
    store = exchange()
    store.claim(READER, R, 0.0)
    store.offer(WRITER, Offer(R, 0, [X, Y], is_complete=True), 0.0)
    seal(store, WRITER, R, X)
    block = store.begin(R, WRITER.incarnation, Y)
    assert store.give_up(block.writer, block.hash) == [Available(READER, R, (), True)]


def test_the_heir_of_a_block_is_asked_for_it() -> None:
    store = exchange()
    store.offer(WRITER, Offer(R, 0, [X]), 0.0)
    assert store.offer(OTHER, Offer(S, 0, [X]), 0.0) == []
    assert store.lost(WRITER) == [Wanted(OTHER, S, (X,))]
    seal(store, OTHER, S, X)
    store.check_invariants()


def test_ended_hand_overs_are_remembered_but_not_for_ever() -> None:
    store = exchange()
    for number in range(REMEMBERED + 10):
        key = RequestKey(RequestId(str(number)))
        store.claim(READER, key, 0.0)
        store.release(READER, key)
    store.check_invariants()
    (refused,) = store.offer(WRITER, Offer(RequestKey(RequestId(str(REMEMBERED))), 0, [X]), 0.0)
    assert isinstance(refused, Closed)


def test_one_party_may_hold_both_ends() -> None:
    store = exchange()
    store.offer(WRITER, Offer(R, 0, [X]), 0.0)
    store.claim(WRITER, R, 0.0)
    seal(store, WRITER, R, X)
    store.lost(WRITER)
    assert not store.live() and store.index.num_pins == 0
    (refused,) = store.claim(READER, R, 0.0)
    assert isinstance(refused, Closed)


def test_of_a_prefix_that_nobody_holds_the_head_outlives_the_tail() -> None:
    store = Exchange(BlockIndex(2))
    store.offer(WRITER, Offer(R, 0, [X, Y]), 0.0)
    seal(store, WRITER, R, X)
    seal(store, WRITER, R, Y)
    store.lost(WRITER)
    store.offer(OTHER, Offer(S, 0, [BlockHash(b"z")]), 0.0)
    seal(store, OTHER, S, BlockHash(b"z"))
    assert store.claim(READER, R, 0.0) == [Available(READER, R, ((0, X),), True)]
