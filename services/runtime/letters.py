"""Events on their way to sessions: gathered for a few milliseconds while they are tokens only, else sent at once.

A message costs every process on its way a few wake-ups of the processor, whatever it carries. Steps may be shorter than
that is worth, or than anybody sees: tokens that follow within `window` of the last message share the next one. What
starts, ends or fails an answer takes waiting tokens along and never waits.

Owns order: a session's events leave in the order in which they came.
"""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from services.pb import session_pb2
from services.runtime.duty import UpSession


@dataclass(slots=True, eq=False)
class _Letter:
    session: UpSession
    sent: float = float("-inf")
    events: list[session_pb2.Event] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None

    def add(self, event: session_pb2.Event) -> None:
        """A waiting event of the same answer takes further tokens up, so that who reads has one to handle."""
        if event.WhichOneof("kind") == "tokens":
            for earlier in self.events:
                if (earlier.request_id, earlier.attempt) == (event.request_id, event.attempt):
                    earlier.tokens.ids.extend(event.tokens.ids)
                    earlier.tokens.logprobs.extend(event.tokens.logprobs)
                    earlier.segments.extend(event.segments)
                    return
        self.events.append(event)


class Letters:
    """One per desk; used on the loop thread."""

    def __init__(self, window: float) -> None:
        """`window` in seconds; 0 sends everything at once."""
        self._window = window
        self._letters: dict[int, _Letter] = {}

    def add(self, session: UpSession, events: Iterable[session_pb2.Event], *, can_wait: bool = False) -> None:
        """For `session`, after all that came before."""
        letter = self._letters.setdefault(id(session), _Letter(session))
        for event in events:
            letter.add(event)
        if not letter.events:
            return
        left = letter.sent + self._window - time.monotonic()
        if not can_wait or left <= 0:
            self._send(letter)
        elif letter.timer is None:
            letter.timer = asyncio.get_running_loop().call_later(left, self._send, letter)

    def closed(self, session: UpSession) -> None:
        """What is still here for it is nobody's any more."""
        if (letter := self._letters.pop(id(session), None)) and letter.timer:
            letter.timer.cancel()

    def _send(self, letter: _Letter) -> None:
        if letter.timer:
            letter.timer.cancel()
            letter.timer = None
        events, letter.events = letter.events, []
        letter.sent = time.monotonic()
        # To a session that is ending nothing needs to be said: its works are about to be cancelled.
        if letter.session.is_open:
            letter.session.send(session_pb2.Up(events=session_pb2.Events(events=events)))
