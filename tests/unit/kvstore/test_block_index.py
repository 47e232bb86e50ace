"""The block index: pages, those who wait, eviction."""

import pytest

from services.core.block_life import BlockState
from services.core.errors import StaleHandoff
from services.core.handoff import Holder, Party
from services.core.ids import BlockHash, RequestId, RequestKey
from services.kvstore.block import Answer, Block, Stand
from services.kvstore.block_index import BlockIndex
from services.kvstore.pages import PageState

A, B, C = (Stand(Holder("handoff", RequestKey(RequestId(n))), Party(i, n, True)) for i, n in enumerate("abc"))
FAR = Stand(A.holder, Party(7, "far"))
CACHE = Stand(Holder("cache", A.holder.key, 1), Party(1, "b", True))
X, Y, Z = (BlockHash(name) for name in (b"x", b"y", b"z"))


def offered(index: BlockIndex, block_hash: BlockHash, stand: Stand) -> Block:
    assert index.offer(block_hash, stand) is Answer.GRANTED
    block = index.find(block_hash)
    assert block
    return block


def put(index: BlockIndex, block_hash: BlockHash, stand: Stand) -> Block:
    block = offered(index, block_hash, stand)
    index.written(block, checksum=1)
    return block


def test_a_second_writer_waits_and_is_pinned_when_the_first_is_done() -> None:
    index = BlockIndex(2)
    block = offered(index, X, A)
    assert index.offer(X, B) is index.offer(X, B) is Answer.PENDING
    assert index.written(block, checksum=1) == (A, B)
    assert index.offer(X, C) is Answer.EXISTS
    assert index.num_pins == 3


def test_those_who_wait_for_a_writer_that_fails_may_offer_again_in_their_order() -> None:
    index = BlockIndex(1)
    block = offered(index, X, A)
    index.offer(X, B)
    index.offer(X, C)
    assert index.failed(block) == (B, C)
    assert index.find(X) is None
    with pytest.raises(StaleHandoff):
        index.written(block, checksum=1)
    heir = offered(index, X, B)
    assert heir.grant.page == block.grant.page and heir.grant.generation > block.grant.generation
    index.check_invariants()


def test_the_page_of_a_lost_writer_is_lent_to_nobody_until_its_process_is_quiet() -> None:
    index = BlockIndex(1)
    block = offered(index, X, A)
    index.offer(X, B)
    assert index.lost(block) == (B,)
    assert index.offer(X, B) is Answer.REFUSED
    assert index.pages.quarantined() == {"a": 1}
    assert index.pages.quiet(Party(9, "b", True)) == 0
    assert index.pages.quiet(Party(9, "a", True)) == 1
    assert index.offer(X, B) is Answer.GRANTED


def test_the_page_of_a_lost_writer_whose_bytes_the_store_copies_is_free_at_once() -> None:
    index = BlockIndex(1)
    index.lost(offered(index, X, FAR))
    assert index.offer(Y, B) is Answer.GRANTED


def test_a_block_that_nobody_wants_any_more_keeps_its_page_until_its_writer_has_spoken() -> None:
    index = BlockIndex(1)
    block = offered(index, X, A)
    index.leave(X, A.holder)
    assert block.state is BlockState.RECALLED and index.num_returning == 1
    assert index.offer(Y, B) is Answer.REFUSED
    assert index.written(block, checksum=1) == ()
    assert (index.num_cached, index.num_pins) == (1, 0)
    assert index.offer(Y, B) is Answer.GRANTED


def test_a_recalled_block_is_waited_for_again_by_whoever_offers_it() -> None:
    index = BlockIndex(1)
    block = offered(index, X, A)
    index.leave(X, A.holder)
    assert index.offer(X, B) is Answer.PENDING
    assert block.state is BlockState.GRANTED
    assert index.written(block, checksum=1) == (B,)


def test_what_the_store_copies_itself_is_given_up_as_soon_as_nobody_wants_it() -> None:
    index = BlockIndex(1)
    block = offered(index, X, FAR)
    index.leave(X, FAR.holder)
    assert block.state is BlockState.ABSENT and index.num_used == 0


def test_a_block_for_the_cache_is_pinned_for_nobody_and_waits_for_nobody() -> None:
    index = BlockIndex(2)
    put(index, X, CACHE)
    assert (index.num_cached, index.num_pins) == (1, 0)
    block = offered(index, Y, A)
    assert index.offer(Y, CACHE) is Answer.PENDING
    assert index.written(block, checksum=1) == (A,)
    assert index.offer(X, B) is Answer.EXISTS and index.num_pins == 2


def test_the_longest_unused_block_is_evicted_first_and_a_pin_saves_it() -> None:
    index = BlockIndex(2)
    put(index, X, A)
    put(index, Y, A)
    index.unpin(X, A.holder)
    index.unpin(Y, A.holder)
    assert index.pin(X, B.holder)
    index.unpin(X, B.holder)
    put(index, Z, C)
    assert index.pin(X, C.holder) and not index.pin(Y, C.holder)
    assert index.num_evictions == 1


def test_a_store_full_of_pinned_blocks_refuses_and_changes_nothing() -> None:
    index = BlockIndex(1)
    block = put(index, X, A)
    assert index.offer(Y, B) is Answer.REFUSED
    assert index.find(Y) is None and index.pages.state(0) is PageState.KEPT
    index.check_invariants()
    index.unpin(X, A.holder)
    assert offered(index, Y, B).grant.generation > block.grant.generation


def test_a_bad_block_is_found_by_nobody_new_and_its_page_stays_with_those_who_have_it() -> None:
    index = BlockIndex(2)
    bad = put(index, X, A)
    index.pin(X, B.holder)
    assert set(index.found_bad(bad)) == {A.holder, B.holder}
    assert index.found_bad(bad) == ()
    assert not index.pin(X, C.holder) and index.longest([X]) == 0
    good = put(index, X, C)
    assert good.grant.page != bad.grant.page
    index.unpin(X, A.holder)
    assert index.num_used == 2
    index.unpin(X, B.holder)
    assert (index.num_used, index.num_pins) == (1, 1)
    index.check_invariants()


def test_a_bad_block_that_nobody_has_is_gone_at_once() -> None:
    index = BlockIndex(1)
    bad = put(index, X, CACHE)
    assert index.found_bad(bad) == ()
    assert index.num_used == index.num_cached == 0
    index.check_invariants()


def test_unpinning_what_is_not_pinned_changes_nothing() -> None:
    index = BlockIndex(1)
    index.unpin(X, A.holder)
    put(index, X, A)
    index.unpin(X, B.holder)
    index.unpin(X, A.holder)
    index.unpin(X, A.holder)
    assert (index.num_cached, index.num_pins) == (1, 0)
    index.check_invariants()


def test_changes_tell_what_became_readable_and_what_is_gone_since_the_last_look() -> None:
    index = BlockIndex(2)
    put(index, X, A)
    offered(index, Y, B)
    assert index.drain_changes() == ([X], [])
    index.failed(index.find(Y) or pytest.fail())
    index.unpin(X, A.holder)
    put(index, Y, B)
    put(index, Z, C)
    assert index.drain_changes() == ([Y, Z], [X])
    assert index.drain_changes() == ([], [])
    assert set(index.sealed()) == {Y, Z}


def test_the_longest_known_beginning_ends_at_the_first_gap() -> None:
    index = BlockIndex(3)
    put(index, X, A)
    put(index, Z, A)
    assert (index.longest([X, Y, Z]), index.longest([Y]), index.longest([X, Z]), index.longest([])) == (1, 0, 2, 0)
