"""What the person at the terminal sees: answers on standard output, progress on standard error."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.text import Text

_HIDDEN = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
"""Control characters: a model's text must not be able to steer the terminal."""


def printable(text: str) -> str:
    """`text` without control characters except newline and tab."""
    return text.translate(_HIDDEN)


def show_text(console: Console, text: str) -> None:
    """A piece of an answer as it comes: no markup, no wrapping, no newline added."""
    console.out(printable(text), end="", highlight=False)


class Steps:
    """Progress: lines for what is done, and on a terminal a spinner for what is being done."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._spinner = console.status("") if console.is_terminal else None
        self._starting: dict[str, float] = {}

    def __enter__(self) -> Self:
        if self._spinner:
            self._spinner.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.pause()

    def doing(self, text: str) -> None:
        """What is going on, for as long as nothing else is said."""
        if self._spinner:
            self._spinner.update(Text(text))
            self._spinner.start()

    def done(self, text: str) -> None:
        """A line that stays."""
        self._console.print(Text(text, style="dim"), soft_wrap=True)

    def pause(self) -> None:
        """Takes the spinner away, so that an answer can be shown; `doing` brings it back."""
        if self._spinner:
            self._spinner.stop()

    def member(self, name: str, state: str) -> None:
        """What has become of a process of the cluster."""
        if state == "starting":
            self._starting[name] = time.monotonic()
        elif state == "ready":
            self.done(f"{name} ready after {time.monotonic() - self._starting.pop(name):.1f} s")
        waiting = f"waiting for {', '.join(self._starting)}" if self._starting else ""
        self.doing(waiting or f"{name} {state}")
