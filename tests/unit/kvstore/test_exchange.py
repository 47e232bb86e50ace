"""Hand-overs over the index: what is told to whom."""

from services.core.errors import Overloaded, StaleHandoff
from services.core.handoff import Party
from services.core.ids import BlockHash, RequestId, RequestKey
from services.kvstore.archive import REMEMBERED
from services.kvstore.block_index import BlockIndex
from services.kvstore.exchange import Exchange, Offer, Sealing
from services.kvstore.notices import Available, BlockRef, Closed, Lent, Notice, Wanted
from services.kvstore.pages import Grant

R, S = (RequestKey(RequestId(name)) for name in "rs")
WRITER, OTHER, READER = Party(1, "w", is_near=True), Party(2, "o", is_near=True), Party(3, "r", is_near=True)
FAR = Party(4, "f")
X, Y, Z = BlockHash(b"x"), BlockHash(b"y"), BlockHash(b"z")


def exchange(capacity: int = 8) -> Exchange:
    return Exchange(BlockIndex(capacity))


def seal(store: Exchange, party: Party, key: RequestKey, *hashes: BlockHash) -> list[Notice]:
    return store.written(party, key, [Sealing(each, grant_of(store, each).generation, 1) for each in hashes])


def grant_of(store: Exchange, block_hash: BlockHash) -> Grant:
    block = store.index.find(block_hash)
    assert block
    return block.grant


def granted(store: Exchange, party: Party, key: RequestKey, *hashes: BlockHash) -> Wanted:
    return Wanted(party, key, tuple((each, grant_of(store, each)) for each in hashes))


def there(store: Exchange, index: int, block_hash: BlockHash) -> BlockRef:
    return BlockRef(index, block_hash, grant_of(store, block_hash), 1)


def test_an_offer_is_answered_with_what_is_wanted_and_what_is_there() -> None:
    store = exchange()
    assert store.offer(WRITER, Offer(R, 0, [X]), 0.0) == [granted(store, WRITER, R, X)]
    seal(store, WRITER, R, X)
    assert store.offer(OTHER, Offer(S, 0, [X, Y]), 0.0) == [
        granted(store, OTHER, S, Y),
        Available(OTHER, S, (there(store, 0, X),)),
    ]


def test_what_is_offered_twice_is_granted_once() -> None:
    store = exchange()
    store.offer(WRITER, Offer(R, 0, [X]), 0.0)
    assert store.offer(WRITER, Offer(R, 0, [X]), 0.0) == []


def test_the_reader_hears_of_each_block_once_and_of_the_end_with_the_last() -> None:
    store = exchange()
    store.claim(READER, R, 0.0)
    store.offer(WRITER, Offer(R, 0, [X, Y], is_complete=True), 0.0)
    assert seal(store, WRITER, R, X) == [Available(READER, R, (there(store, 0, X),))]
    assert seal(store, WRITER, R, Y) == [
        Available(READER, R, (there(store, 1, Y),)),
        Available(READER, R, is_complete=True),
    ]
    assert store.claim(READER, R, 0.0) == []


def test_a_reader_that_waits_hears_that_the_writer_has_come() -> None:
    store = exchange()
    store.claim(READER, R, 0.0)
    notices = store.offer(WRITER, Offer(R, 0, [X]), 0.0)
    assert notices == [Available(READER, R), granted(store, WRITER, R, X)]


def test_a_late_reader_hears_everything_at_once() -> None:
    store = exchange()
    store.offer(WRITER, Offer(R, 3, [X, Y], is_complete=True), 0.0)
    seal(store, WRITER, R, X, Y)
    store.release(WRITER, R)
    assert store.index.num_pins == 0 and not store.live()
    refs = (there(store, 3, X), there(store, 4, Y))
    assert store.claim(READER, R, 0.0) == [Available(READER, R, refs, is_complete=True)]
    assert store.index.num_pins == 2


def test_a_writer_that_is_lost_leaves_the_reader_what_is_sealed_and_the_store_a_page_it_may_not_lend() -> None:
    store = exchange()
    store.claim(READER, R, 0.0)
    store.offer(WRITER, Offer(R, 0, [X, Y]), 0.0)
    seal(store, WRITER, R, X)
    assert store.lost(WRITER) == [Available(READER, R, is_complete=True)]
    assert store.readable(R, READER.incarnation, X).checksum == 1
    assert not store.index.lent() and store.index.pages.quarantined() == {"w": 1}
    store.quiet(Party(9, "w", is_near=True))
    assert store.index.pages.quarantined() == {}


def test_a_writer_that_releases_has_stopped_copying() -> None:
    store = exchange()
    store.offer(WRITER, Offer(R, 0, [X, Y]), 0.0)
    store.release(WRITER, R)
    assert store.index.num_used == 0


def test_a_reader_that_leaves_closes_the_hand_over_and_its_writer_may_end_its_copy() -> None:
    store = exchange(1)
    store.claim(READER, R, 0.0)
    store.offer(WRITER, Offer(R, 0, [X]), 0.0)
    (closed,) = store.release(READER, R)
    assert isinstance(closed, Closed) and closed.to == WRITER and isinstance(closed.error, StaleHandoff)
    (refused,) = store.offer(WRITER, Offer(R, 1, [Y]), 0.0)
    assert isinstance(refused, Closed) and refused.to == WRITER
    # The page is not to be had while the writer may be copying; then it is, and what came is kept.
    assert store.offer(OTHER, Offer(S, 0, [Y]), 0.0) == []
    assert seal(store, WRITER, R, X) == [granted(store, OTHER, S, Y)]
    store.check_invariants()


def test_a_closed_writer_that_gives_up_instead_makes_room_as_well() -> None:
    store = exchange(1)
    store.claim(READER, R, 0.0)
    store.offer(WRITER, Offer(R, 0, [X]), 0.0)
    store.lost(READER)
    store.offer(OTHER, Offer(S, 0, [Y]), 0.0)
    assert store.release(WRITER, R) == [granted(store, OTHER, S, Y)]


def test_a_block_that_failed_is_not_waited_for() -> None:
    store = exchange()
    store.claim(READER, R, 0.0)
    store.offer(WRITER, Offer(R, 0, [X, Y], is_complete=True), 0.0)
    seal(store, WRITER, R, X)
    assert store.given_up(WRITER, R, [(Y, grant_of(store, Y).generation)]) == [
        Available(READER, R, never=(Y,)),
        Available(READER, R, is_complete=True),
    ]


def test_a_word_about_an_earlier_grant_or_from_another_party_is_refused_and_changes_nothing() -> None:
    store = exchange()
    store.offer(WRITER, Offer(R, 0, [X]), 0.0)
    old = grant_of(store, X)
    store.release(WRITER, R)
    store.offer(OTHER, Offer(S, 0, [X]), 0.0)
    late = Wanted(WRITER, R, refused=(X,))
    assert store.written(WRITER, R, [Sealing(X, old.generation, 1)]) == [late]
    assert store.written(WRITER, R, [Sealing(X, grant_of(store, X).generation, 1)]) == [late]
    assert store.written(WRITER, R, [Sealing(Y, grant_of(store, X).generation, 1)]) == [Wanted(WRITER, R, refused=(Y,))]
    assert store.given_up(WRITER, R, [(X, old.generation)]) == []
    assert seal(store, OTHER, S, X) == []
    assert store.index.num_pins == 1


def test_the_heir_of_a_block_is_asked_for_it() -> None:
    store = exchange()
    store.offer(WRITER, Offer(R, 0, [X]), 0.0)
    assert store.offer(OTHER, Offer(S, 0, [X]), 0.0) == []
    notices = store.lost(WRITER)
    assert notices == [granted(store, OTHER, S, X)]
    seal(store, OTHER, S, X)
    store.check_invariants()


def test_an_heir_for_which_there_is_no_page_is_told_so_and_so_is_its_reader() -> None:
    store = exchange(1)
    store.claim(READER, S, 0.0)
    store.offer(WRITER, Offer(R, 0, [X]), 0.0)
    store.offer(OTHER, Offer(S, 0, [X], is_complete=True), 0.0)
    assert store.lost(WRITER) == [
        Wanted(OTHER, S, refused=(X,)),
        Available(READER, S, never=(X,)),
        Available(READER, S, is_complete=True),
    ]


def test_a_full_store_refuses_what_is_too_much_and_tells_both_sides() -> None:
    store = exchange(1)
    store.claim(READER, R, 0.0)
    notices = store.offer(FAR, Offer(R, 0, [X, Y], is_complete=True), 0.0)
    assert notices == [
        Available(READER, R),
        granted(store, FAR, R, X)._replace(refused=(Y,)),
        Available(READER, R, never=(Y,)),
    ]
    try:
        store.begin(R, FAR.incarnation, Y)
    except Overloaded:
        pass
    else:
        raise AssertionError("a block without a page was taken")
    assert store.seal(store.begin(R, FAR.incarnation, X), 1)[-1] == Available(READER, R, is_complete=True)


# --- what the reader wants


def test_blocks_the_reader_holds_are_not_needed_and_the_end_does_not_wait_for_them() -> None:
    store = exchange()
    store.claim(READER, R, 0.0)
    assert store.want(READER, R, [Y]) == []
    assert store.offer(WRITER, Offer(R, 0, [X, Y, Z], is_complete=True), 0.0)[1:] == [
        granted(store, WRITER, R, Y)._replace(not_needed=(X, Z))
    ]
    assert seal(store, WRITER, R, Y)[-1] == Available(READER, R, is_complete=True)


def test_a_late_word_about_what_is_wanted_recalls_the_rest() -> None:
    store = exchange()
    store.claim(READER, R, 0.0)
    store.offer(WRITER, Offer(R, 0, [X, Y, Z], is_complete=True), 0.0)
    seal(store, WRITER, R, X)
    assert store.want(READER, R, [Y]) == [Wanted(WRITER, R, not_needed=(Z,))]
    assert store.index.num_pins == 0 and store.index.num_returning == 1
    assert seal(store, WRITER, R, Z) == []
    assert store.index.num_cached == 2
    assert seal(store, WRITER, R, Y)[-1] == Available(READER, R, is_complete=True)


def test_whoever_is_not_the_reader_may_want_nothing() -> None:
    store = exchange()
    store.claim(READER, R, 0.0)
    for notices in (store.want(OTHER, R, [X]), store.want(READER, S, [X])):
        (refused,) = notices
        assert isinstance(refused, Closed)
    assert store.want(READER, R, []) == []


# --- the cache


def test_the_cache_takes_what_there_is_room_for_and_needs_nothing_twice() -> None:
    store = exchange(2)
    store.offer(WRITER, Offer(R, 0, [X]), 0.0)
    notices = store.offer(OTHER, Offer(S, 0, [X, Y, Z], is_cache=True), 0.0)
    assert notices == [granted(store, OTHER, S, Y)._replace(refused=(Z,), not_needed=(X,))]
    assert store.offer(OTHER, Offer(S, 0, [Y], is_cache=True), 0.0) == [Wanted(OTHER, S, not_needed=(Y,))]
    assert seal(store, OTHER, S, Y) == []
    assert (store.index.num_cached, store.index.num_pins) == (1, 0)
    assert store.offer(WRITER, Offer(S, 0, [Y], is_cache=True), 0.0) == [Wanted(WRITER, S, not_needed=(Y,))]


def test_a_hand_over_evicts_what_is_cached_and_waits_for_what_is_being_cached() -> None:
    store = exchange(2)
    store.offer(OTHER, Offer(S, 0, [X, Y], is_cache=True), 0.0)
    seal(store, OTHER, S, X)
    assert store.offer(WRITER, Offer(R, 0, [Z, BlockHash(b"a")]), 0.0) == [granted(store, WRITER, R, Z)]
    assert store.given_up(OTHER, S, [(Y, grant_of(store, Y).generation)]) == [
        granted(store, WRITER, R, BlockHash(b"a"))
    ]
    store.check_invariants()


def test_a_hand_over_that_waits_for_a_page_hears_when_it_does_not_come() -> None:
    store = exchange(1)
    store.offer(OTHER, Offer(S, 0, [X], is_cache=True), 0.0)
    assert store.offer(WRITER, Offer(R, 0, [Z]), 0.0) == []
    assert store.lost(OTHER) == [Wanted(WRITER, R, refused=(Z,))]


def test_the_release_of_a_hand_over_leaves_copies_for_the_cache_alone() -> None:
    store = exchange()
    store.offer(READER, Offer(R, 0, [X], is_cache=True), 0.0)
    store.claim(READER, R, 0.0)
    store.release(READER, R)
    assert store.index.num_lent == 1
    seal(store, READER, R, X)
    assert store.index.num_cached == 1


# --- loans


def test_the_longest_known_beginning_is_lent_and_pinned_until_it_is_given_back() -> None:
    store = exchange()
    store.offer(WRITER, Offer(R, 0, [X, Y, Z], is_cache=True), 0.0)
    seal(store, WRITER, R, X, Z)
    assert store.borrow(READER, S, [X, Y, Z]) == [Lent(READER, S, (there(store, 0, X),))]
    assert store.borrow(READER, S, [Y]) == [Lent(READER, S)]
    assert not store.is_idle and store.index.num_pins == 1
    assert store.readable(S, "r", X, is_loan=True).checksum == 1
    assert store.loans.open() == [(S, READER, 1)]
    store.give_back(READER, S)
    store.give_back(READER, S)
    assert store.is_idle and store.index.num_pins == 0
    assert (store.loans.num_asked, store.loans.num_lent) == (4, 1)


def test_loans_end_with_the_session() -> None:
    store = exchange()
    store.offer(WRITER, Offer(R, 0, [X], is_cache=True), 0.0)
    seal(store, WRITER, R, X)
    store.borrow(READER, S, [X])
    store.borrow(OTHER, S, [X])
    store.lost(READER)
    assert store.index.num_pins == 1
    store.lost(OTHER)
    assert store.is_idle
    store.check_invariants()


# --- doubt


def test_a_bad_block_is_taken_from_the_hand_over_and_its_reader_is_told() -> None:
    store = exchange()
    store.claim(READER, R, 0.0)
    store.offer(WRITER, Offer(R, 0, [X], is_complete=True), 0.0)
    seal(store, WRITER, R, X)
    generation = grant_of(store, X).generation
    assert store.doubted(WRITER, R, X, generation) is None
    assert store.doubted(READER, R, X, generation + 1) is None
    block = store.doubted(READER, R, X, generation)
    assert block
    assert store.found_bad(block) == [Available(READER, R, is_complete=True, never=(X,))]
    assert store.index.num_used == 1
    store.check_invariants()
    store.release(READER, R)
    store.release(WRITER, R)
    assert store.index.num_used == 0


def test_a_hand_over_that_comes_back_has_nothing_of_a_block_that_went_bad() -> None:
    store = exchange()
    store.offer(WRITER, Offer(R, 0, [X]), 0.0)
    seal(store, WRITER, R, X)
    block = store.index.find(X)
    assert block
    store.found_bad(block)
    store.lost(WRITER)
    assert store.index.num_pins == 0
    store.claim(READER, R, 0.0)
    store.check_invariants()


def test_a_bad_block_stays_with_who_borrowed_it_and_is_lent_no_more() -> None:
    store = exchange()
    store.offer(WRITER, Offer(R, 0, [X], is_cache=True), 0.0)
    seal(store, WRITER, R, X)
    store.borrow(READER, S, [X])
    block = store.doubted(READER, S, X, grant_of(store, X).generation)
    assert block and store.found_bad(block) == []
    assert store.borrow(OTHER, S, [X]) == [Lent(OTHER, S)]
    store.check_invariants()
    store.give_back(READER, S)
    assert store.index.num_used == 0


# --- ends


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
    store = exchange(2)
    store.offer(WRITER, Offer(R, 0, [X, Y]), 0.0)
    seal(store, WRITER, R, X, Y)
    store.lost(WRITER)
    store.offer(OTHER, Offer(S, 0, [Z]), 0.0)
    seal(store, OTHER, S, Z)
    assert store.claim(READER, R, 0.0) == [Available(READER, R, (there(store, 0, X),), is_complete=True)]
