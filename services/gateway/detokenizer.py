"""Token ids to text, as they come. Works on bytes and knows nothing of stop strings or streams.

A character may span several tokens, so bytes that can still become a character are held back: at most three. Bytes that
cannot are U+FFFD at once, one per maximal ill-formed part, exactly as `bytes.decode("utf-8", "replace")` has it.
"""

import codecs
from collections.abc import Callable, Iterable


class Detokenizer:
    """Joined, the pieces it gives are the decoding of all ids at once; no piece ends inside a character."""

    def __init__(self, token_bytes: Callable[[int], bytes], *, drops_first_space: bool = False) -> None:
        """With `drops_first_space` one space that begins the whole text is an artifact of the vocabulary."""
        self._token_bytes = token_bytes
        self._drops_space = drops_first_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def decode(self, ids: Iterable[int]) -> str:
        """The text that `ids` complete."""
        text = self._decoder.decode(b"".join(map(self._token_bytes, ids)))
        if self._drops_space and text:
            self._drops_space = False
            return text.removeprefix(" ")
        return text

    def flush(self) -> str:
        """What is held back, as U+FFFD: no more will come."""
        return self._decoder.decode(b"", final=True)
