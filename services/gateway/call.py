"""What a client's call looks like to the rest of the gateway, whichever API it came through."""

from dataclasses import dataclass
from typing import Protocol

from services.core.ids import RequestId
from services.core.request import FinishReason
from services.gateway.answer import Closing, Delta, Usage
from services.gateway.ask import Ask


@dataclass(frozen=True, slots=True)
class Call:
    """What is known of a call before its content is."""

    received_at: float
    """Monotonic; the ledger begins here."""
    operation: str
    """`chat` or `text_completion`."""
    traceparent: str = ""
    """The caller's span, if it sent one."""
    client_request_id: str = ""
    """The caller's own id: echoed and noted, never used."""
    deadline: float | None = None
    """Monotonic."""
    key: str = ""
    """Digest of the key it came with; empty if it came with none."""


@dataclass(frozen=True, slots=True)
class Head:
    """What can be said before the answer."""

    request_id: RequestId
    trace_id: str
    model: str


@dataclass(frozen=True, slots=True)
class Done:
    """What is said at the end."""

    head: Head
    reason: FinishReason
    """Of the answer that ended last."""
    usage: Usage
    closing: Closing
    seed: int


class Caller(Protocol):
    """The client's side of one call. Its methods may raise what the transport raises; cancellation passes through."""

    def ask(self) -> Ask:
        """What is asked for. Raises InvalidRequest."""

    async def send(self, delta: Delta) -> None:
        """A part of an answer. Waits for a client that is slow to read."""

    async def finish(self, delta: Delta, done: Done) -> None:
        """The last part of the answer that ends last."""


MAX_ID_CHARACTERS = 128


def cleaned_id(client_request_id: str) -> str:
    """The caller's id, cut to what may be put in a header and a span: short printable ASCII."""
    cut = client_request_id[:MAX_ID_CHARACTERS]
    return "".join(char for char in cut if char.isascii() and char.isprintable()).strip()
