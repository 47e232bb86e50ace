"""One engine step as data: what the batcher decides (`StepPlan`), what the engine answers (`StepResult`).

Everything crossing the thread boundary between the loop thread and the compute thread is one of these two.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.core.ids import BlockId, RequestKey
from services.core.request import Sampling


@dataclass(frozen=True, slots=True)
class History:
    """The tokens before a draw, for penalties; never changed, so two threads may read it."""

    prompt: Sequence[int]
    answer: Sequence[int]


@dataclass(frozen=True, slots=True)
class Draw:
    """Draw one token from the logits of a chunk's last row."""

    sampling: Sampling
    position: int
    """Position of the token being drawn; with the seed it decides the draw."""
    banned: frozenset[int] = frozenset()
    """Ids that must not be drawn (stop ids before `min_tokens`); those beyond the vocabulary mean nothing."""
    history: History | None = None
    """None where `sampling` has no penalties."""

    @property
    def is_edited(self) -> bool:
        """Whether the logits are changed before the draw."""
        return bool(self.banned or self.sampling.logit_bias) or self.history is not None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely the model itself finds a drawn token: before bias, penalties, temperature and filters."""

    logprob: float
    """Natural logarithm of the token's probability."""
    top: tuple[tuple[int, float], ...] = ()
    """The most likely tokens (id, log probability), the best first; equals by id, and none without probability."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a draw gave."""

    token: int
    logprobs: TokenLogprobs | None = None
    """None unless `Sampling.logprobs` asks for them."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of one request's tokens to compute in this step; a decode row is a chunk of one token."""

    key: RequestKey
    tokens: tuple[int, ...]
    start: int
    """Position of `tokens[0]`; positions before it are already in the cache."""
    blocks: tuple[BlockId, ...]
    """The request's block table; covers at least `start + len(tokens)` positions."""
    draw: Draw | None
    """None for a chunk that does not reach the last known token."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Chunks to compute together; at most one per request, never empty."""

    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came out. Every chunk with a draw is in `drawn` or in `failed`."""

    drawn: dict[RequestKey, Drawn]
    failed: dict[RequestKey, str] = field(default_factory=dict)
    """Requests whose own row went wrong (NaN logits); the others are not touched."""
    seconds: float = 0.0
