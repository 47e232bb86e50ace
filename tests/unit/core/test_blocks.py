from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from services.core.blocks import BlockNames, Chain, chain, hashes, root

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def test_names_are_the_same_in_every_process_and_version() -> None:
    start = root(b"weights", b"tenant")
    assert start.hex() == "2b0a3d2154abdbef3107dabff0ae78c2b733f37c1c39e43d6820f6ea6ca602f4"
    assert chain(start, (1, 2, 3)).hex() == "7923f21f32ec5b598d80da8b09f098561001e17e424d810161540d94ac289165"


def test_fields_do_not_collide_by_concatenation() -> None:
    roots = [root(b"ab", b"c"), root(b"a", b"bc"), root(b"abc", b""), root(b"", b"abc")]
    assert all(left != right for left, right in combinations(roots, 2))


def test_a_root_is_never_a_block() -> None:
    assert root(b"", b"") != chain(root(b"", b""), ())


@given(TOKENS, TOKENS, st.integers(1, 8))
def test_two_names_are_equal_exactly_when_all_tokens_up_to_the_block_are(
    left: list[int], right: list[int], size: int
) -> None:
    start = root(b"w", b"")
    for at, (mine, other) in enumerate(zip(hashes(start, left, size), hashes(start, right, size), strict=False), 1):
        assert (mine == other) == (left[: at * size] == right[: at * size])


@given(TOKENS, st.integers(1, 8))
def test_a_partial_last_block_has_no_name(tokens: list[int], size: int) -> None:
    assert len(hashes(root(b"w", b""), tokens, size)) == len(tokens) // size


@given(TOKENS, st.integers(1, 8), st.integers(0, 40))
def test_a_chain_grown_token_by_token_names_the_same_blocks(tokens: list[int], size: int, split: int) -> None:
    start = root(b"w", b"")
    grown = Chain(start, size, tokens[:split])
    for token in tokens[split:]:
        grown.append(token)
    assert tuple(block.hash for block in grown.full) == hashes(start, tokens, size)
    assert [token for block in grown.full for token in block.tokens] == tokens[: len(grown.full) * size]


def test_the_same_tokens_behind_another_parent_have_another_name() -> None:
    start = root(b"w", b"")
    assert chain(chain(start, (1,)), (2,)) != chain(chain(start, (3,)), (2,))
    assert chain(start, (2,)) != chain(root(b"w", b"tenant"), (2,))


@given(TOKENS, TOKENS, st.integers(1, 8))
def test_names_of_tokens_that_grow_are_those_of_the_whole(tokens: list[int], more: list[int], size: int) -> None:
    names = BlockNames(b"tenant")
    for known in (tokens, tokens + more):
        assert tuple(names.of(known, b"w", size)) == hashes(root(b"w", b"tenant"), known, size)
        assert tuple(names.of(known, b"v", 2)) == hashes(root(b"v", b"tenant"), known, 2)
