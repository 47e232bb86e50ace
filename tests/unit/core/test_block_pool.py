import pytest

from services.core.block_pool import BlockPool
from services.core.blocks import Chain, FullBlock, root
from services.core.ids import BlockId


def full_blocks(*tokens: int) -> list[FullBlock]:
    """Blocks of one token each."""
    return Chain(root(b"w", b""), 1, tokens).full


def allocate(pool: BlockPool, count: int) -> tuple[BlockId, ...] | None:
    reservation = pool.reserve((), count)
    return None if reservation is None else reservation.blocks


def held_and_sealed(pool: BlockPool, prefix: list[FullBlock]) -> tuple[BlockId, ...]:
    blocks = allocate(pool, len(prefix))
    assert blocks is not None
    for block, content in zip(blocks, prefix, strict=True):
        assert pool.seal(block, content)
    return blocks


def test_a_released_prefix_is_hit_again() -> None:
    pool = BlockPool(4)
    blocks = held_and_sealed(pool, full_blocks(1, 2))
    pool.release(blocks)
    assert (pool.num_free, pool.num_cached, pool.num_used) == (2, 2, 0)
    reservation = pool.reserve(full_blocks(1, 2, 3), 3)
    assert reservation is not None
    assert (reservation.blocks[:2], reservation.hits) == (blocks, 2)


def test_a_shared_block_outlives_its_first_holder() -> None:
    pool = BlockPool(2)
    blocks = held_and_sealed(pool, full_blocks(1))
    assert pool.reserve(full_blocks(1), 1) is not None
    pool.release(blocks)
    assert pool.num_used == 1
    assert allocate(pool, 2) is None


def test_a_hash_collision_is_a_miss() -> None:
    pool = BlockPool(2)
    (content,) = full_blocks(1)
    pool.release(held_and_sealed(pool, [content]))
    reservation = pool.reserve([FullBlock(content.hash, (9,))], 1)
    assert reservation is not None and reservation.hits == 0


def test_free_blocks_go_first_then_the_longest_unused_and_a_tail_before_its_head() -> None:
    pool = BlockPool(5)
    old = held_and_sealed(pool, full_blocks(1, 2))
    new = held_and_sealed(pool, full_blocks(3, 4))
    pool.release(old)
    pool.release(new)
    taken = allocate(pool, 5)
    assert taken is not None
    assert taken[1:] == (old[1], old[0], new[1], new[0])


def test_a_hit_makes_a_block_the_most_recently_used() -> None:
    pool = BlockPool(2)
    first = held_and_sealed(pool, full_blocks(1))
    second = held_and_sealed(pool, full_blocks(2))
    pool.release(first)
    pool.release(second)
    assert pool.reserve(full_blocks(1), 1) is not None
    pool.release(first)
    assert allocate(pool, 1) == second


def test_a_reservation_is_whole_or_nothing() -> None:
    pool = BlockPool(3)
    pool.release(held_and_sealed(pool, full_blocks(1, 2)))
    assert pool.reserve(full_blocks(1, 2), 3, spare=1) is None
    assert (pool.num_free, pool.num_cached) == (1, 2)
    assert pool.reserve(full_blocks(1, 2), 3) is not None


def test_a_hit_on_an_idle_block_does_not_count_as_room() -> None:
    pool = BlockPool(2)
    pool.release(held_and_sealed(pool, full_blocks(1, 2)))
    assert pool.reserve(full_blocks(1), 3) is None
    assert pool.reserve(full_blocks(1), 2) is not None


def test_a_request_fits_once_those_that_hold_the_blocks_let_go() -> None:
    pool = BlockPool(4)
    shared = held_and_sealed(pool, full_blocks(1, 2))
    assert pool.reserve(full_blocks(1, 2), 2) is not None
    private = allocate(pool, 2)
    assert private is not None
    assert not pool.fits((), 1)
    assert pool.fits((), 2, without=private) and not pool.fits((), 2, spare=1, without=private)
    assert not pool.fits((), 3, without=(*private, *shared)), "somebody else holds the shared blocks too"
    assert pool.fits((), 4, without=(*private, *shared, *shared))
    pool.pin(private[0])
    assert not pool.fits((), 2, without=private)


def test_hits_among_the_blocks_let_go_are_no_room_for_others() -> None:
    pool = BlockPool(3)
    held = held_and_sealed(pool, full_blocks(1, 2, 3))
    assert pool.fits(full_blocks(1), 3, without=held)
    assert not pool.fits(full_blocks(1), 4, without=held)
    assert pool.fits(full_blocks(1, 2, 3), 3)


def test_of_two_equal_blocks_the_first_stays_cached_and_the_second_stays_private() -> None:
    pool = BlockPool(2)
    first = held_and_sealed(pool, full_blocks(1))
    second = allocate(pool, 1)
    assert second is not None
    assert not pool.seal(second[0], full_blocks(1)[0])
    pool.release(second)
    assert (pool.num_free, pool.num_cached) == (1, 0)
    reservation = pool.reserve(full_blocks(1), 1)
    assert reservation is not None and reservation.blocks == first


def test_a_pinned_block_is_reused_only_after_its_last_copy_returned() -> None:
    pool = BlockPool(1)
    blocks = held_and_sealed(pool, full_blocks(1))
    pool.pin(blocks[0])
    pool.pin(blocks[0])
    pool.release(blocks)
    pool.unpin(blocks[0])
    assert (pool.num_pinned, pool.num_cached, allocate(pool, 1)) == (1, 0, None)
    pool.unpin(blocks[0])
    assert (pool.num_pinned, pool.num_cached) == (0, 1)


def test_a_forgotten_block_is_never_hit_again() -> None:
    pool = BlockPool(2)
    blocks = held_and_sealed(pool, full_blocks(1))
    pool.forget(blocks[0])
    pool.release(blocks)
    assert pool.num_cached == 0
    reservation = pool.reserve(full_blocks(1), 1)
    assert reservation is not None and reservation.hits == 0


def test_wrong_use_is_refused() -> None:
    pool = BlockPool(2)
    block = BlockId(0)
    one, two = full_blocks(1, 2)
    for misuse in (
        lambda: pool.release([block]),
        lambda: pool.unpin(block),
        lambda: pool.pin(block),
        lambda: pool.seal(block, one),
        lambda: pool.forget(block),
    ):
        with pytest.raises(ValueError):
            misuse()
    (held,) = held_and_sealed(pool, [one])
    assert pool.seal(held, one)
    with pytest.raises(ValueError):
        pool.seal(held, two)
    pool.check_invariants()
