"""Any split of any text: joined pieces are the whole decoding, and no piece ends inside a character."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.detokenizer import Detokenizer

vocabularies = st.lists(st.binary(max_size=6), min_size=1, max_size=12)


def pieces_of(vocabulary: list[bytes], ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(vocabulary.__getitem__)
    return [detokenizer.decode((token,)) for token in ids] + [detokenizer.flush()]


@given(vocabularies, st.data())
def test_joined_pieces_are_the_whole_decoding(vocabulary: list[bytes], data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, len(vocabulary) - 1), max_size=30))
    whole = b"".join(vocabulary[token] for token in ids)
    assert "".join(pieces_of(vocabulary, ids)) == whole.decode("utf-8", "replace")


@given(st.text(max_size=40), st.lists(st.integers(1, 5), min_size=1, max_size=8))
def test_valid_text_never_shows_a_replacement_character(text: str, sizes: list[int]) -> None:
    raw = text.encode()
    parts: list[bytes] = []
    at = 0
    while at < len(raw):
        size = sizes[len(parts) % len(sizes)]
        parts.append(raw[at : at + size])
        at += size
    pieces = pieces_of(parts, list(range(len(parts)))) if parts else []
    assert "".join(pieces) == text
    assert "".join(pieces).count("\ufffd") == text.count("\ufffd")


@pytest.mark.parametrize("text", ["🙂", "ď", "👩‍👩‍👧", "中文", "a🙂b"])
def test_a_character_over_several_tokens_appears_with_its_last_byte(text: str) -> None:
    raw = text.encode()
    pieces = pieces_of([bytes([byte]) for byte in raw], list(range(len(raw))))
    assert "".join(pieces) == text
    assert "\ufffd" not in "".join(pieces)


def test_what_is_held_back_is_never_more_than_three_bytes() -> None:
    detokenizer = Detokenizer(lambda token: bytes([token]))
    for token in (0xF0, 0x9F, 0x99):
        assert detokenizer.decode((token,)) == ""
    assert detokenizer.decode((0x41,)) == "\ufffdA"
    assert detokenizer.flush() == ""


def test_a_run_of_bytes_that_are_no_text_comes_out_at_once_and_in_linear_time() -> None:
    began = time.process_time()
    pieces = pieces_of([b"\x80"], [0] * 5000)
    assert pieces[:-1] == ["\ufffd"] * 5000
    assert time.process_time() - began < 1


def test_an_unfinished_character_at_the_end_is_flushed() -> None:
    assert pieces_of([b"\xe4\xb8"], [0]) == ["", "\ufffd"]


@pytest.mark.parametrize("spaces", range(5))
def test_leading_spaces_are_kept(spaces: int) -> None:
    pieces = pieces_of([b" ", b"x"], [0] * spaces + [1])
    assert "".join(pieces) == " " * spaces + "x"


@pytest.mark.parametrize("spaces", range(1, 5))
def test_one_leading_space_goes_if_the_vocabulary_put_it_there(spaces: int) -> None:
    detokenizer = Detokenizer([b" ", b"x"].__getitem__, drops_first_space=True)
    pieces = [detokenizer.decode((token,)) for token in [0] * spaces + [1, 0, 1]]
    assert "".join(pieces) == " " * (spaces - 1) + "x x"
