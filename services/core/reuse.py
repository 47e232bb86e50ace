"""Where the KV of what requests know came from, in tokens, for counters: what was found, fetched, computed, and of
that what had been computed before.

    of a prompt              |-- own: in this cache --|-- store: fetched --|---- computed ----|
    computed once more       whatever of `Progress.had` is computed here, by why it is not here any more
"""

from collections import Counter
from collections.abc import Mapping

from services.core.progress import Progress
from services.core.request import Role


class Reuse:
    """What has come together since it was last taken."""

    def __init__(self) -> None:
        self._prefix: Counter[str] = Counter()
        self._again: Counter[str] = Counter()

    def computing(self, progress: Progress, tokens: int) -> None:
        """`tokens` more of it were computed here."""
        again = min(progress.computed + tokens, progress.had) - progress.computed
        if again > 0:
            self._again[progress.loss] += again

    def prompt_done(self, progress: Progress) -> None:
        """A first token was drawn here. A prompt that was handed over counts where it was computed."""
        if progress.request.role is Role.DECODE:
            return
        prompt, own = len(progress.request.prompt), progress.cached_tokens or 0
        fetched = min(progress.fetched, prompt - own)
        self._prefix.update(own=own, store=fetched, computed=prompt - own - fetched)

    def take_prefix(self) -> Mapping[str, int]:
        """Tokens of prompts, by source."""
        taken, self._prefix = self._prefix, Counter()
        return taken

    def take_again(self) -> Mapping[str, int]:
        """Tokens computed although they had been before, by reason: lost, resumed or preempted."""
        taken, self._again = self._again, Counter()
        return taken
