"""How a request is held in a stage of its way, and how a test sees that it is there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from services.core.audit import Held
from tests.faults.clusters import Plants

PROMPT, ANSWER = 400, 40
"""Tokens of the request that is struck."""
STEP_SECONDS = 0.1
"""Of decode, in the stage that is about it: an answer takes some seconds."""


@dataclass(slots=True)
class Progress:
    """How far the client is."""

    ids: list[int] = field(default_factory=list)
    is_over: bool = False


class Thing(NamedTuple):
    """Something that a process holds."""

    process: str
    held: Held


class Stage(NamedTuple):
    """`hold` names where the request is held, for how long is up to the test."""

    service: str
    seam: str
    tokens: int
    """The client has so many at least."""
    signs: Mapping[str, str]
    """Service to the state of what it then holds for the request; the empty state is any."""
    absent: str = ""
    """A service that holds nothing for it."""

    def plants(self, seconds: float) -> Mapping[str, Plants]:
        """That hold a request for so long."""
        return {self.service: {self.seam: STEP_SECONDS if self.seam == "decode.step" else seconds}}

    def is_reached(self, progress: Progress, things: Sequence[Thing]) -> bool:
        if len(progress.ids) < self.tokens or progress.is_over:
            return False
        if any(thing.process.startswith(self.absent) for thing in things if self.absent):
            return False
        return all(
            any(each.process.startswith(service) and state in (each.held.state, "") for each in things)
            for service, state in self.signs.items()
        )


STAGES: Mapping[str, Stage] = {
    "queued": Stage("scheduler", "scheduler.queue", 0, {"scheduler": "queued"}),
    "prefilling": Stage("prefill", "prefill.step", 0, {"prefill": "prefill.compute"}),
    "transferring": Stage("prefill", "kv.put", 1, {"decode": "kv.put"}),
    "first token out": Stage("scheduler", "scheduler.first_token", 1, {"decode": ""}),
    "decoding": Stage("decode", "decode.step", 4, {"decode": "decode.run"}),
    "finishing": Stage("gateway", "gateway.stream", 1, {"gateway": "stream"}, absent="scheduler"),
}
