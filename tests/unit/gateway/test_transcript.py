"""Tokens that count, text that is shown, and where a stop string cuts both."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.plan import TokenLogprobs
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


def likely(ids: Sequence[int]) -> list[TokenLogprobs]:
    """One for each, which tells which it belongs to."""
    return [TokenLogprobs(-float(token)) for token in ids]


def shown_of(whole: Transcript) -> list[tuple[int, int]]:
    """(token, offset) of what may be shown by now, each with its own log probability."""
    taken = whole.take_shown()
    assert all(one.logprobs.logprob == -one.token for one in taken)
    return [(one.token, one.offset) for one in taken]


def test_a_token_is_shown_when_some_of_its_text_is() -> None:
    whole = transcript("##")
    raw = [*"aé#".encode()]
    assert whole.push(raw[:2], likely(raw[:2])) == "a"
    assert shown_of(whole) == [(raw[0], 0)]
    assert whole.push(raw[2:], likely(raw[2:])) == "é"
    assert shown_of(whole) == [(raw[1], 1), (raw[2], 1)]
    assert whole.flush() == "#"
    assert shown_of(whole) == [(ord("#"), 2)]


def test_tokens_of_a_stop_string_and_behind_it_are_not_shown() -> None:
    whole = transcript("##")
    raw = [*b"ab##c"]
    assert whole.push(raw, likely(raw)) == "ab"
    assert shown_of(whole) == [(ord("a"), 0), (ord("b"), 1)]
    assert (whole.flush(), shown_of(whole)) == ("", [])
    assert whole.take_logprobs() == tuple(likely(whole.ids)) and len(whole.ids) == 4
    assert whole.take_logprobs() == ()


def test_a_token_that_reaches_into_a_stop_string_is_shown_for_what_is_before_it() -> None:
    texts = {1: b"good!", 2: b"!day"}
    whole = Transcript(Detokenizer(lambda token: texts[token]), frozenset(), ["!!"])
    assert whole.push([1, 2], likely([1, 2])) == "good"
    assert shown_of(whole) == [(1, 0)]


def test_the_end_token_is_not_shown_and_a_token_without_text_is() -> None:
    texts = {1: b"a", 2: b"", 3: b"b"}
    whole = Transcript(Detokenizer(lambda token: texts.get(token, b"")), frozenset({END}), [])
    whole.push([1, 2, 3, 2, END], likely([1, 2, 3, 2, END]))
    assert shown_of(whole) == [(1, 0), (2, 1), (3, 1)]
    whole.flush()
    assert shown_of(whole) == [(2, 2)]


@given(st.text("xy🙂", max_size=12), st.integers(1, 5))
def test_shown_tokens_do_not_depend_on_the_grouping_and_cover_the_text(text: str, size: int) -> None:
    raw = list(text.encode())
    whole, grouped = transcript("yx"), transcript("yx")
    expected = whole.push(raw, likely(raw)) + whole.flush()
    tokens: list[tuple[int, int]] = []
    for at in range(0, len(raw), size):
        grouped.push(raw[at : at + size], likely(raw[at : at + size]))
        tokens += shown_of(grouped)
    grouped.flush()
    tokens += shown_of(grouped)
    assert tokens == shown_of(whole)
    assert bytes(token for token, _ in tokens).decode() == expected
    assert all(expected[offset:].encode().startswith(bytes([token])) or token >= 0x80 for token, offset in tokens)


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
