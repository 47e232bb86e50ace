"""One request's part on one simulated worker."""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from services.core.request import Role


class State(Enum):
    """Where it is on its worker."""

    WAITING = "waiting"
    FETCHING = "fetching"
    """Holds blocks, and waits for their content or for its first token."""
    RUNNING = "running"
    OVER = "over"


@dataclass(slots=True, eq=False)
class Job:
    """Counted in tokens, as `core/progress.py` counts them."""

    number: int
    """Of its request."""
    role: Role
    known: int
    """Tokens of prompt and answer so far."""
    left: int
    """Tokens still to be drawn here."""
    names: tuple[int, ...] = ()
    """Of the prompt's full blocks."""
    fetches: int = 0
    """Of these blocks, how many it may fetch."""
    awaits_first: bool = False
    """Its first token is drawn elsewhere and not here yet."""
    rank: int = 0
    """On its worker; lower goes first."""
    computed: int = 0
    drawn: int = 0
    hits: int = 0
    """Blocks found here at its first start."""
    starts: int = 0
    held: list[int] = field(default_factory=list)
    """Named blocks it holds."""
    unnamed: int = 0
    """Other blocks it holds."""
    state: State = State.WAITING
    began: float = 0.0
    """When it was given its blocks."""
    last_chunk: int = 0
    """Tokens of its latest chunk."""
    first_at: float = 0.0
    """When it drew its first token here."""
    pace_at_first: "tuple[int, tuple[int, ...]]" = (0, ())
    """The worker's counts of decode steps (`Gaps`) then."""

    def chunk(self, length: int) -> "Piece":
        """The next tokens to compute."""
        return Piece(self, length)

    def stretch(self, block_size: int) -> int:
        """All that remains: no block lands while it is computed."""
        return self.remaining

    @property
    def remaining(self) -> int:
        """Known tokens that are not computed."""
        return self.known - self.computed

    @property
    def blocks(self) -> int:
        return len(self.held) + self.unnamed


class Piece(NamedTuple):
    """A run of a job's tokens in one step."""

    job: Job
    length: int
