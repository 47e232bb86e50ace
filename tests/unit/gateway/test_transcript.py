"""Tokens that count, text that is shown, and where a stop string cuts both."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.detokenizer import Detokenizer
from services.gateway.transcript import Transcript

END = 256


def transcript(*stops: str, stop_ids: frozenset[int] = frozenset({END})) -> Transcript:
    """Over a vocabulary of bytes and one end token without text."""
    return Transcript(Detokenizer(lambda token: bytes([token]) if token < END else b""), stop_ids, stops)


def test_the_end_token_counts_and_is_not_shown() -> None:
    shown = transcript()
    assert shown.push([*b"Hi", END]) == "Hi"
    assert shown.ids == [*b"Hi", END]
    assert shown.flush() == ""


def test_a_stop_id_of_the_clients_own_is_not_shown_either() -> None:
    shown = transcript(stop_ids=frozenset({ord("!")}))
    assert shown.push([*b"Hi!"]) == "Hi"


def test_a_stop_string_drops_the_tokens_after_it() -> None:
    shown = transcript("##")
    assert shown.push([*b"one #"]) == "one "
    assert shown.push([*b"# two"]) == ""
    assert (shown.stopped_at, shown.ids) == (5, [*b"one ##"])
    assert shown.push([*b"more"]) == ""
    assert (shown.flush(), shown.ids) == ("", [*b"one ##"])


def test_text_that_only_began_like_a_stop_string_is_flushed() -> None:
    shown = transcript("##")
    assert shown.push([*b"one #"]) == "one "
    assert shown.flush() == "#"
    assert shown.stopped_at is None


def test_a_stop_string_that_only_the_flush_completes_is_found() -> None:
    shown = transcript("\ufffd")
    assert shown.push([ord("a"), 0xE4]) == "a"
    assert shown.flush() == ""
    assert shown.stopped_at == 1


@given(st.text("xy🙂", max_size=12), st.integers(1, 5))
def test_shown_text_does_not_depend_on_the_grouping(text: str, size: int) -> None:
    raw = list(text.encode())
    whole, grouped = transcript("yx"), transcript("yx")
    expected = whole.push(raw) + whole.flush()
    pieces = [grouped.push(raw[at : at + size]) for at in range(0, len(raw), size)]
    assert "".join(pieces) + grouped.flush() == expected
    assert grouped.ids == whole.ids


@pytest.mark.parametrize("stop", ["🙂", "ď"])
def test_a_stop_string_over_several_tokens_stops_at_the_last(stop: str) -> None:
    shown = transcript(stop)
    assert shown.push([*b"a", *stop.encode(), *b"b"]) == "a"
    assert shown.stopped_at == len(stop.encode())
