"""The block index: pages, the line of writers, eviction."""

import pytest

from services.core.errors import Overloaded, StaleHandoff
from services.core.ids import BlockHash, RequestId, RequestKey
from services.kvstore.block_index import Answer, BlockIndex, BlockState

A, B, C = (RequestKey(RequestId(name)) for name in "abc")
X, Y, Z = (BlockHash(name) for name in (b"x", b"y", b"z"))


def put(index: BlockIndex, block_hash: BlockHash, key: RequestKey) -> None:
    assert index.offer(block_hash, key) is Answer.WRITE
    index.seal(index.begin(block_hash, key), checksum=1)


def test_a_page_is_taken_only_when_bytes_arrive() -> None:
    index = BlockIndex(1)
    assert index.offer(X, A) is index.offer(Y, A) is Answer.WRITE
    assert index.num_used == 0
    index.begin(X, A)
    assert (index.num_used, index.num_writing, index.num_pins) == (1, 1, 0)


def test_a_second_writer_waits_and_is_pinned_when_the_first_seals() -> None:
    index = BlockIndex(2)
    index.offer(X, A)
    assert index.offer(X, B) is index.offer(X, B) is Answer.PENDING
    assert index.seal(index.begin(X, A), checksum=1) == (A, B)
    assert index.offer(X, C) is Answer.EXISTS
    assert index.num_pins == 3


def test_the_first_in_line_takes_over_from_a_writer_that_withdraws() -> None:
    index = BlockIndex(2)
    index.offer(X, A)
    index.offer(X, B)
    index.offer(X, C)
    late = index.begin(X, A)
    assert index.withdraw(X, C) is None
    assert index.withdraw(X, A) == B
    assert late.state is BlockState.GONE
    with pytest.raises(StaleHandoff):
        index.seal(late, checksum=1)
    assert index.seal(index.begin(X, B), checksum=2) == (B,)
    index.check_invariants()


def test_only_the_writer_may_begin_and_only_once() -> None:
    index = BlockIndex(2)
    index.offer(X, A)
    index.offer(X, B)
    with pytest.raises(StaleHandoff):
        index.begin(X, B)
    with pytest.raises(StaleHandoff):
        index.begin(Y, A)
    index.begin(X, A)
    with pytest.raises(StaleHandoff):
        index.begin(X, A)


def test_the_longest_unused_block_is_evicted_first_and_a_pin_saves_it() -> None:
    index = BlockIndex(2)
    put(index, X, A)
    put(index, Y, A)
    index.unpin(X, A)
    index.unpin(Y, A)
    assert index.pin(X, B)
    index.unpin(X, B)
    put(index, Z, C)
    assert index.pin(X, C) and not index.pin(Y, C)


def test_a_store_full_of_pinned_blocks_is_overloaded_and_changes_nothing() -> None:
    index = BlockIndex(1)
    put(index, X, A)
    index.offer(Y, B)
    with pytest.raises(Overloaded):
        index.begin(Y, B)
    index.check_invariants()
    index.unpin(X, A)
    assert index.begin(Y, B).page == 0


def test_unpinning_what_is_not_pinned_changes_nothing() -> None:
    index = BlockIndex(1)
    index.unpin(X, A)
    put(index, X, A)
    index.unpin(X, B)
    index.unpin(X, A)
    index.unpin(X, A)
    assert (index.num_cached, index.num_pins) == (1, 0)
    index.check_invariants()
