"""An answer's tokens as the text that is shown: detokenized, without end tokens, cut at a stop string. Pure."""

from collections.abc import Sequence

from services.gateway.detokenizer import Detokenizer
from services.gateway.stop_strings import StopStrings


class Transcript:
    """All tokens of one answer, across attempts, and how far their text may be sent."""

    def __init__(self, detokenizer: Detokenizer, stop_ids: frozenset[int], stops: Sequence[str]) -> None:
        self._detokenizer = detokenizer
        self._stop_ids = stop_ids
        self._stops = StopStrings(stops)
        self.ids: list[int] = []
        """Tokens that count, the one that ended the answer included."""
        self.stopped_at: int | None = None
        """Index of the token that completed a stop string."""

    def push(self, ids: Sequence[int]) -> str:
        """The text that `ids` make sendable. Tokens after a stop string are dropped."""
        pieces = []
        for token in ids:
            if self.stopped_at is not None:
                break
            self.ids.append(token)
            # A stop id is the last of its answer and never shown, also when it stands for text.
            if token not in self._stop_ids:
                pieces.append(self._show(self._detokenizer.decode((token,))))
        return "".join(pieces)

    def flush(self) -> str:
        """The text that was held back, now that no token follows."""
        if self.stopped_at is not None:
            return ""
        shown = self._show(self._detokenizer.flush())
        return shown if self.stopped_at is not None else shown + self._stops.flush()

    def _show(self, text: str) -> str:
        safe, hit = self._stops.push(text)
        if hit:
            self.stopped_at = len(self.ids) - 1
        return safe
