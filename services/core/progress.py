"""How far one request is on one worker: what is known, what is computed, which blocks hold it.

    prompt and emitted tokens   |-------------------- known ---------------------|
    in the cache                |-------- computed ---------|
    to do                                                   |---- remaining -----|

There is no prefill and no decode state: a request with one remaining token decodes, one with more is being prefilled,
whether for the first time, behind a prefix hit, or again after a preemption. (The idea is vLLM v1's scheduler.)
"""

from array import array
from dataclasses import dataclass, field
from enum import Enum

from services.core.blocks import Chain, FullBlock
from services.core.ids import BlockId, RequestKey
from services.core.plan import Chunk, Draw, History
from services.core.prefix_fetch import NOTHING_KNOWN, KnownPrefix
from services.core.request import Request, Role


class State(Enum):
    """Where a request is."""

    WAITING = "waiting"
    """Queued; holds nothing."""
    FETCHING = "fetching"
    """Holds blocks that transfers fill, or lacks the first token; computes nothing."""
    RUNNING = "running"
    """Holds blocks; takes part in steps."""
    LEAVING = "leaving"
    """Cancelled or expired; holds blocks until the step or the transfer that uses them is over."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A line of an audit: what is held for whom, since when."""

    key: RequestKey
    state: State
    blocks: int
    age: float
    """Seconds since the request was added."""
    still: float
    """Seconds since it last started, computed or was preempted."""


@dataclass(slots=True, eq=False)
class Progress:
    """Mutable; owned by one batcher."""

    request: Request
    rank: tuple[float, int]
    """Importance, the most important first: arrival, less the head start that priority gives, then order of arrival.

    It never changes, so whatever is preempted around it, the first in rank always gets on; and every request becomes
    the first in rank, for those that come ever later rank behind it at last, however important they are.
    """
    chain: Chain
    """Known tokens, prompt and answer."""
    added: float
    prefix: KnownPrefix = NOTHING_KNOWN
    """What a store claims to hold of it; for roles that compute the prompt."""
    moved: float = field(init=False)
    """When it last started, computed or was preempted."""
    wants_fetch: bool = field(init=False)
    """Blocks computed elsewhere may come; false from the first sign that they will not."""
    awaits_first: bool = field(init=False)
    """The first token is drawn elsewhere and not here yet."""
    state: State = State.WAITING
    blocks: list[BlockId] = field(default_factory=list)
    computed: int = 0
    """Positions whose KV is in `blocks`."""
    landed: set[int] = field(default_factory=set)
    """Indexes of filled blocks; they count as computed once all before them do."""
    told: int = 0
    """Blocks of which nothing is to be told any more: sealed and announced, or not this worker's to announce."""
    fetched: int = 0
    """Positions that a store's cache gave."""
    had: int = field(init=False)
    """Positions that somebody has computed before: prefill, an earlier attempt, or this worker until a preemption."""
    loss: str = field(init=False)
    """Why those are computed once more, if they are."""
    cached_tokens: int | None = None
    """Tokens of the prompt whose KV was found at the first start; later ones find what was computed for itself."""
    _prompt_ids: "array[int]" = field(init=False)
    """The prompt where penalties ask for it, in a form that an engine reads without a copy; else empty."""

    def __post_init__(self) -> None:
        self._prompt_ids = array("i", self.request.prompt if self.request.sampling.has_penalties else ())
        self.moved = self.added
        self.wants_fetch = self.awaits_first = is_handed = self.request.role is Role.DECODE
        handed = sum(len(block.tokens) for block in self.chain.full)
        self.had = handed if is_handed else len(self.request.tokens) - 1 if self.request.emitted else 0
        self.loss = "lost" if is_handed else "resumed"

    @property
    def key(self) -> RequestKey:
        return self.request.key

    @property
    def known(self) -> int:
        """Tokens known so far."""
        return len(self.chain.tokens)

    @property
    def remaining(self) -> int:
        """Known tokens that are not computed; at least one while running, for its logits."""
        return self.known - self.computed

    def stretch(self, block_size: int) -> int:
        """Of what remains, the tokens up to the next block that has landed: that one need not be computed."""
        end = min((at * block_size for at in self.landed if at * block_size > self.computed), default=self.known)
        return end - self.computed

    def preempted(self) -> None:
        """Its blocks are taken: what is not found again is computed again."""
        self.had, self.loss = max(self.had, self.computed), "preempted"

    @property
    def answered(self) -> int:
        """Tokens of the answer known so far."""
        return self.known - len(self.request.prompt)

    def handed_blocks(self, block_size: int) -> list[FullBlock]:
        """What prefill hands over: full blocks of what was known before the first token."""
        return self.chain.full[: len(self.request.tokens) // block_size]

    def reusable_blocks(self, block_size: int) -> list[FullBlock]:
        """Full blocks before the last known token, which is always computed here, to get its logits."""
        return self.chain.full[: (self.known - 1) // block_size]

    def chunk(self, length: int) -> Chunk:
        """The next `length` tokens to compute; draws only if they reach the last known one."""
        end = self.computed + length
        tokens = tuple(self.chain.tokens[self.computed : end])
        draw = self._draw() if end == self.known else None
        return Chunk(self.key, tokens, self.computed, tuple(self.blocks), draw)

    def _draw(self) -> Draw:
        stopping = self.request.stopping
        banned = stopping.stop_ids if self.answered < stopping.min_tokens else frozenset[int]()
        return Draw(self.request.sampling, self.known, banned, self._history())

    def _history(self) -> History | None:
        if not self.request.sampling.has_penalties:
            return None
        return History(self._prompt_ids, array("i", self.chain.tokens[len(self.request.prompt) :]))
