"""Compared with the obvious way: look at all the text after every character."""

from hypothesis import example, given
from hypothesis import strategies as st

from services.gateway.stop_strings import StopStrings

texts = st.text("ab", max_size=25)
stop_lists = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def naive(text: str, stops: list[str]) -> tuple[str, int | None]:
    """(text before the stop string, characters read until it was complete)."""
    for read in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:read].endswith(stop)]
        if complete:
            return text[: read - max(map(len, complete))], read
    return text, None


def naive_withheld(text: str, stops: list[str]) -> int:
    """Length of the longest end of the text that is a proper beginning of a stop string."""
    return max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)


def cut(text: str, sizes: list[int]) -> list[str]:
    parts, at = [], 0
    while at < len(text):
        size = sizes[len(parts) % len(sizes)]
        parts.append(text[at : at + size])
        at += size
    return parts


@given(texts, stop_lists, st.lists(st.integers(1, 6), min_size=1, max_size=5))
@example("abab", ["abb", "bab"], [1])
def test_the_result_is_that_of_looking_at_everything_whatever_the_split(
    text: str, stops: list[str], sizes: list[int]
) -> None:
    expected, read = naive(text, stops)
    matcher, sent, seen = StopStrings(stops), "", ""
    for part in cut(text, sizes):
        seen += part
        safe, hit = matcher.push(part)
        sent += safe
        if hit:
            assert read is not None and len(seen) - len(part) < read <= len(seen)
            assert sent == expected
            return
        assert len(seen) - len(sent) == naive_withheld(seen, stops)
    assert read is None
    assert sent + matcher.flush() == expected


@given(texts, stop_lists)
def test_no_character_of_a_stop_string_is_sent(text: str, stops: list[str]) -> None:
    matcher = StopStrings(stops)
    safe, hit = matcher.push(text)
    assert text.startswith(safe)
    if hit:
        assert not any(stop in safe for stop in stops)


def test_without_stop_strings_everything_passes() -> None:
    assert StopStrings(()).push("text") == ("text", False)


def test_what_was_held_back_comes_out_when_it_turns_out_to_be_nothing() -> None:
    matcher = StopStrings(["\n\nUser:"])
    assert matcher.push("Hi\n\nUs") == ("Hi", False)
    assert matcher.push("ual") == ("\n\nUsual", False)


def test_many_long_stop_strings_cost_little() -> None:
    matcher = StopStrings(["a" * 255 + chr(0x100 + at) for at in range(16)])
    safe, hit = matcher.push("a" * 5000)
    assert (len(safe), hit) == (5000 - 255, False)
