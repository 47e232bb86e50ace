"""One request's story, as a pure state machine: facts in, effects out; the conductor carries the effects out.

    QUEUED ──placed──▶ STARTED ──tokens──▶ ANSWERING ──finished──▶ ENDED
      ▲                   │                    │
      └──── failed, lost or overloaded: the next attempt, with what was emitted ────┘

Split: prefill draws the first token and decode goes on; unsplit: the decode worker does both. Cancellation is legal in
every phase. Facts of an earlier attempt never get here: the conductor files stories by request and attempt.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from services.core.block_facts import BlockSource
from services.core.errors import DiptychError, Draining, InternalError, Overloaded, Poisonous, WorkerLost
from services.core.ids import BlockHash
from services.core.plan import TokenLogprobs
from services.core.request import FinishReason, Request, Role
from services.scheduler.decision import NOTHING, Decision
from services.scheduler.suspicion import Deaths

NOT_BEGUN = (Overloaded, Draining)
"""What a worker answers when it did not begin, or leaves in good order: such an attempt does not count."""


class Phase(Enum):
    """Where the current attempt is."""

    QUEUED = "queued"
    STARTED = "started"
    ANSWERING = "answering"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Placement:
    """Who does what; workers and stores by address."""

    decode: str
    prefill: str = ""
    """Empty: the decode worker prefills by itself."""
    kvstore: str = ""
    why: str = ""
    sources: tuple[BlockSource, ...] = ()
    """Stores that hold the beginning of the prompt, for whoever computes it."""
    hashes: Sequence[BlockHash] = field(default=(), compare=False)
    """Names of the full blocks of all its tokens; its workers will have them in their caches."""
    record: Decision = NOTHING
    """What `why` says in short."""

    def cached_tokens(self, request: Request) -> int:
        """Tokens of the request that need not be computed, as far as the record says."""
        return len(request.tokens) - self.record.uncached_tokens if self.record is not NOTHING else 0

    @property
    def is_split(self) -> bool:
        return bool(self.prefill)


@dataclass(frozen=True, slots=True)
class StartLeg:
    """Begin this attempt on a worker in a role."""

    worker: str
    role: Role


@dataclass(frozen=True, slots=True)
class PassFirstToken:
    """Tell the decode worker what prefill drew."""

    worker: str
    token: int


@dataclass(frozen=True, slots=True)
class CancelLeg:
    worker: str


@dataclass(frozen=True, slots=True)
class FinishLeg:
    """The answer is complete at `index`; the worker answers with its ledger."""

    worker: str
    index: int


@dataclass(frozen=True, slots=True)
class Relay:
    """Tokens the client has not had."""

    first_index: int
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each of `ids`, or none."""


@dataclass(frozen=True, slots=True)
class Requeue:
    """The attempt is over; the story waits for another place."""

    because: DiptychError


@dataclass(frozen=True, slots=True)
class End:
    """The story is over: with a reason, or with an error."""

    reason: FinishReason | None = None
    error: DiptychError | None = None


Effect = StartLeg | PassFirstToken | CancelLeg | FinishLeg | Relay | Requeue | End


class Story:
    """Facts are methods; each returns the effects, in order."""

    def __init__(self, request: Request, max_attempts: int, max_deaths: int = 2) -> None:
        self.request = request
        """The current attempt."""
        self.phase = Phase.QUEUED
        self.placement: Placement | None = None
        self._emitted = list(request.emitted)
        self._attempts_left = max_attempts
        self._deaths = Deaths(max_deaths)
        self._live: set[str] = set()
        self._is_stopped = False

    @property
    def workers(self) -> frozenset[str]:
        """Workers that hold something for this attempt."""
        return frozenset(self._live)

    @property
    def emitted(self) -> tuple[int, ...]:
        return tuple(self._emitted)

    @property
    def is_suspect(self) -> bool:
        """Whether it may be what its last worker died of."""
        return self._deaths.is_suspect(len(self._emitted))

    def placed(self, placement: Placement) -> list[Effect]:
        """A place was found. Decode hears first, so that it claims the hand-over before prefill puts."""
        self.phase = Phase.STARTED
        self.placement = placement
        self._attempts_left -= 1
        self._live = {placement.decode}
        if not placement.is_split:
            return [StartLeg(placement.decode, Role.WHOLE)]
        self._live.add(placement.prefill)
        return [StartLeg(placement.decode, Role.DECODE), StartLeg(placement.prefill, Role.PREFILL)]

    def tokens(
        self, worker: str, first_index: int, ids: tuple[int, ...], logprobs: tuple[TokenLogprobs, ...] = ()
    ) -> list[Effect]:
        """A worker drew tokens. What the client has had is not relayed again."""
        if self.phase is Phase.ENDED or self.placement is None:
            return []
        known = len(self._emitted)
        if first_index > known:
            return self.failed(worker, InternalError("tokens of the answer are missing"))
        fresh = ids[known - first_index :]
        if not fresh:
            return []
        self._emitted.extend(fresh)
        effects: list[Effect] = [Relay(known, fresh, logprobs[known - first_index :])]
        if self.phase is Phase.STARTED and worker == self.placement.prefill:
            effects.append(PassFirstToken(self.placement.decode, fresh[0]))
        self.phase = Phase.ANSWERING
        return effects

    def goes_on(self, first_index: int, ids: Sequence[int]) -> bool:
        """Tokens of an answer that has begun; True, and they are noted, if just these are to be relayed.

        The short way for what is nearly every event; all else takes `tokens`.
        """
        if self.phase is not Phase.ANSWERING or first_index != len(self._emitted) or not ids:
            return False
        self._emitted.extend(ids)
        return True

    def finished(self, worker: str, reason: FinishReason) -> list[Effect]:
        """A worker is done with its part."""
        self._live.discard(worker)
        if self.phase is Phase.ENDED or reason is FinishReason.HANDED_OVER:
            return []
        return [*self._cancel_legs(), self._end(End(reason=reason))]

    def failed(self, worker: str, error: DiptychError) -> list[Effect]:
        """A worker gave its part up, or is gone. Another attempt may follow; a deadline or a bad request ends it."""
        self._live.discard(worker)
        if self.phase is Phase.ENDED or self.placement is None:
            return []
        if self.phase is Phase.ANSWERING and worker == self.placement.prefill:
            # Prefill's part is done; decode computes what did not come across.
            return []
        effects = self._cancel_legs()
        is_worth_another = error.retry in ("elsewhere", "later", "restart")
        if self._is_stopped:
            # The gateway has seen the answer's end; only the last word of the worker is missing.
            return [*effects, self._end(End(reason=FinishReason.STOP))]
        if is_worth_another and (self._attempts_left > 0 or isinstance(error, NOT_BEGUN)):
            return [*effects, self._requeue(error)]
        return [*effects, self._end(End(error=error))]

    def lost(self, worker: str) -> list[Effect]:
        """The session with a worker ended; if it was the one that computed the request, it may have died of that."""
        if worker not in self._live:
            return []
        error: DiptychError = WorkerLost("the worker that held the request is gone")
        if worker == self._computing and not self._deaths.died(len(self._emitted)):
            error = Poisonous("workers died while they computed this request; it is not tried again")
        return self.failed(worker, error)

    def stop_seen(self, index: int) -> list[Effect]:
        """The gateway saw a stop string that ends with token `index`."""
        self._is_stopped = True
        if self.phase is Phase.ANSWERING and self.placement and self.placement.decode in self._live:
            return [FinishLeg(self.placement.decode, index)]
        if self.phase is Phase.ENDED:
            return []
        return [*self._cancel_legs(), self._end(End(reason=FinishReason.STOP))]

    def cancelled(self) -> list[Effect]:
        """The client left, or nobody can receive the answer any more."""
        self.phase = Phase.ENDED
        return self._cancel_legs()

    def refused(self, error: DiptychError) -> list[Effect]:
        """It will not be placed: queue timeout, deadline, drain."""
        return [*self._cancel_legs(), self._end(End(error=error))]

    @property
    def _computing(self) -> str:
        """The worker that computes it now."""
        if self.placement is None:
            return ""
        return (self.phase is Phase.STARTED and self.placement.prefill) or self.placement.decode

    def _requeue(self, error: DiptychError) -> Requeue:
        if isinstance(error, NOT_BEGUN):
            self._attempts_left += 1
        self.request = self.request.next_attempt(tuple(self._emitted))
        self.phase = Phase.QUEUED
        self.placement = None
        return Requeue(error)

    def _end(self, end: End) -> End:
        self.phase = Phase.ENDED
        return end

    def _cancel_legs(self) -> list[Effect]:
        legs: list[Effect] = [CancelLeg(worker) for worker in sorted(self._live)]
        self._live.clear()
        return legs
