"""Finds stop strings in text that arrives in pieces. Knows no tokens.

Each stop string is a Knuth-Morris-Pratt automaton, fed character by character, so the work is linear in the text and
the result does not depend on where it was cut. The match that is complete first wins; of several that are complete at
the same character the longest, so that no character of any stop string is given out.
"""

from collections.abc import Sequence


class StopStrings:
    """Gives text out as soon as it cannot be the beginning of a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` are not empty strings."""
        self._automata = [_Automaton(stop) for stop in stops]
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """(text that may be sent, whether a stop string is complete). After a hit nothing more may be pushed."""
        if not self._automata:
            return text, False
        seen = self._held + text
        for at in range(len(self._held), len(seen)):
            if length := self._longest_complete(seen[at]):
                self._held = ""
                return seen[: at + 1 - length], True
        keep = max(automaton.matched for automaton in self._automata)
        self._held = seen[len(seen) - keep :]
        return seen[: len(seen) - keep], False

    def flush(self) -> str:
        """What was held back as a possible beginning: no more text will come."""
        held, self._held = self._held, ""
        return held

    def _longest_complete(self, char: str) -> int:
        """Feeds one character to all; the length of the longest stop string that it completes, or 0."""
        longest = 0
        for automaton in self._automata:
            if automaton.feed(char):
                longest = max(longest, automaton.matched)
        return longest


class _Automaton:
    """How much of one stop string the text ends with."""

    def __init__(self, stop: str) -> None:
        self._stop = stop
        self._fallback = _fallbacks(stop)
        self.matched = 0

    def feed(self, char: str) -> bool:
        """Whether `char` completes the stop string; if it does, the automaton is spent."""
        while self.matched and self._stop[self.matched] != char:
            self.matched = self._fallback[self.matched - 1]
        if self._stop[self.matched] == char:
            self.matched += 1
        return self.matched == len(self._stop)


def _fallbacks(stop: str) -> list[int]:
    """For each prefix, the length of the longest shorter prefix that it ends with."""
    lengths = [0] * len(stop)
    length = 0
    for at in range(1, len(stop)):
        while length and stop[at] != stop[length]:
            length = lengths[length - 1]
        if stop[at] == stop[length]:
            length += 1
        lengths[at] = length
    return lengths
