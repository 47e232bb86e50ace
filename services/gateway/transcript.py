"""An answer's tokens as the text that is shown: detokenized, without end tokens, cut at a stop string. Pure."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from services.core.plan import TokenLogprobs
from services.gateway.detokenizer import Detokenizer
from services.gateway.stop_strings import StopStrings


@dataclass(frozen=True, slots=True)
class ShownToken:
    """A token that has a part in the text that may be sent. Known only where log probabilities are asked for."""

    token: int
    offset: int
    """Characters of the answer before it."""
    logprobs: TokenLogprobs


class Transcript:
    """All tokens of one answer, across attempts, and how far their text may be sent."""

    def __init__(self, detokenizer: Detokenizer, stop_ids: frozenset[int], stops: Sequence[str]) -> None:
        self._detokenizer = detokenizer
        self._stop_ids = stop_ids
        self._stops = StopStrings(stops)
        self._decoded = 0
        """Characters that the tokens have made."""
        self._safe = 0
        """Characters that may be sent."""
        self._unshown: deque[ShownToken] = deque()
        """By offset."""
        self._is_flushed = False
        self.ids: list[int] = []
        """Tokens that count, the one that ended the answer included."""
        self._logprobs: list[TokenLogprobs] = []
        """Of the latest of `ids`, until they are taken."""
        self.stopped_at: int | None = None
        """Index of the token that completed a stop string."""

    def push(self, ids: Sequence[int], logprobs: Sequence[TokenLogprobs] = ()) -> str:
        """The text that `ids` make sendable. Tokens after a stop string are dropped. `logprobs`: one each, or none."""
        pieces = []
        for at, token in enumerate(ids):
            if self.stopped_at is not None:
                break
            self.ids.append(token)
            if logprobs:
                self._logprobs.append(logprobs[at])
            # A stop id is the last of its answer and never shown, also when it stands for text.
            if token not in self._stop_ids:
                if logprobs:
                    self._unshown.append(ShownToken(token, self._decoded, logprobs[at]))
                pieces.append(self._show(self._detokenizer.decode((token,))))
        return "".join(pieces)

    def flush(self) -> str:
        """The text that was held back, now that no token follows."""
        if self.stopped_at is not None:
            return ""
        shown = self._show(self._detokenizer.flush())
        if self.stopped_at is None:
            self._is_flushed = True
            shown += self._stops.flush()
        return shown

    def take_logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Those of all `ids` since the last time, where they are asked for; kept no longer, for they are large."""
        taken = tuple(self._logprobs)
        self._logprobs.clear()
        return taken

    def take_shown(self) -> tuple[ShownToken, ...]:
        """Tokens whose text may be sent, if only the beginning of it, and that were not taken yet.

        Those that lie in a stop string or behind it are never among them.
        """
        taken = []
        while self._unshown and (self._is_flushed or self._unshown[0].offset < self._safe):
            taken.append(self._unshown.popleft())
        return tuple(taken)

    def _show(self, text: str) -> str:
        self._decoded += len(text)
        safe, hit = self._stops.push(text)
        self._safe += len(safe)
        if hit:
            self.stopped_at = len(self.ids) - 1
        return safe
