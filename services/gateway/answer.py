"""One answer's life, from the first event to the closed ledger, across attempts. Pure: every verb is told the time."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.core.errors import InternalError
from services.core.ledger import Ledger, Segment
from services.core.plan import TokenLogprobs
from services.core.request import FinishReason, Request
from services.gateway.transcript import ShownToken, Transcript
from services.pb import session_pb2
from services.runtime.codec import error_from_pb, finish_reason_from_pb, logprobs_from_pb, segments_from_pb

TOKENIZE = "gateway.tokenize"
PROMPT = "gateway.shared_prompt"
"""Time in which another answer of the same request had their prompt computed."""
HOP = "hop.gateway_scheduler"
LOST = "lost.scheduler"
"""Time spent on an attempt whose scheduler was lost or leaving, as far as that scheduler had not accounted for it."""
STREAM = "gateway.stream"


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """Prompt tokens whose KV was found rather than computed."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What has come since the last one."""

    text: str
    token_ids: tuple[int, ...]
    index: int = 0
    """Which answer of the request."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each of `token_ids` where they are asked for."""
    shown: tuple[ShownToken, ...] = ()
    """Tokens of `text` where log probabilities are asked for."""
    reason: FinishReason | None = None
    """Set if it is the answer's last."""

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.token_ids or self.shown or self.reason)


@dataclass(frozen=True, slots=True)
class Decision:
    """Where an attempt ran and why; names are empty for one that was lost."""

    attempt: int
    prefill: str
    decode: str
    kvstore: str
    why: str
    index: int = 0
    """Which answer of the request."""
    record: session_pb2.PlacementRecord | None = None
    """What it was weighed against, where the scheduler says so."""


@dataclass(frozen=True, slots=True)
class Closing:
    """The ledger, closed: its segments and the remainder sum to the total."""

    segments: tuple[Segment, ...]
    remainder_seconds: float
    total_seconds: float


def total_usage(answers: Sequence["Answer"]) -> Usage:
    """Of all answers to one prompt, which counts once; so does what of it the first answer found cached."""
    if not answers:
        return Usage(0, 0, 0)
    first = answers[0].usage
    return Usage(first.prompt_tokens, sum(answer.usage.completion_tokens for answer in answers), first.cached_tokens)


class Answer:
    """Takes session events in, gives deltas out. `request` is the first attempt's; later ones only change its key."""

    def __init__(self, request: Request, transcript: Transcript, received_at: float, index: int = 0) -> None:
        self.index = index
        """Which answer of the client's request."""
        self._request = request
        self._transcript = transcript
        self._ledger = Ledger(received_at)
        self._received_at = received_at
        self._callee: list[Segment] = []
        self._texts: list[str] = []
        self._given = 0
        self._cached_tokens = 0
        self._is_waiting = False
        self._since = TOKENIZE
        """What the time before the next start went to."""
        self.decisions: list[Decision] = []
        self.reason: FinishReason | None = None

    @property
    def emitted(self) -> tuple[int, ...]:
        """Tokens that have come, in order."""
        return tuple(self._transcript.ids)

    @property
    def has_prompt(self) -> bool:
        """Whether the prompt was computed: something was drawn from it."""
        return bool(self._transcript.ids) or self.reason is not None

    @property
    def stopped_at(self) -> int | None:
        """Index of the token that completed a stop string: the answer is complete, whatever still comes."""
        return self._transcript.stopped_at

    @property
    def seed(self) -> int:
        return self._request.sampling.seed

    @property
    def usage(self) -> Usage:
        return Usage(len(self._request.prompt), len(self._transcript.ids), self._cached_tokens)

    def held(self, now: float) -> None:
        """It could start, but waits until another answer has had their prompt computed."""
        self._ledger.close(self._since, now)
        self._since = PROMPT

    def started(self, now: float) -> None:
        """An attempt is on its way to a scheduler."""
        self._ledger.close(self._since, now)
        self._since = LOST
        self._is_waiting = True

    def take(self, event: session_pb2.Event, now: float) -> None:
        """An event of the current attempt, which arrived at `now`.

        Raises the error that it carries, or InternalError if the scheduler breaks the protocol.
        """
        self._callee.extend(segments_from_pb(event.segments))
        match event.WhichOneof("kind"):
            case "tokens":
                self._take_tokens(event.tokens)
            case "finished":
                self._finish(event, now)
            case "failed":
                self._absorb(HOP, now)
                self._note_places(event)
                raise error_from_pb(event.failed)

    def lost(self, attempt: int, why: str, now: float) -> None:
        """The scheduler is gone or leaves. An answer of which only the end was not said needs no other attempt."""
        if self._is_waiting:
            self._absorb(LOST, now)
        self.decisions.append(Decision(attempt, "", "", "", why, self.index))
        ids, stopping = self._transcript.ids, self._request.stopping
        if self.stopped_at is not None or (ids and ids[-1] in stopping.stop_ids):
            self.reason = FinishReason.STOP
        elif len(ids) == stopping.max_tokens:
            self.reason = FinishReason.LENGTH

    def take_delta(self) -> Delta:
        """All that may be sent and was not yet."""
        if self.reason is not None:
            self._texts.append(self._transcript.flush())
            self.reason = self.reason if self.stopped_at is None else FinishReason.STOP
        ids, text = self._transcript.ids[self._given :], "".join(self._texts)
        logprobs, shown = self._transcript.take_logprobs(), self._transcript.take_shown()
        self._texts.clear()
        self._given += len(ids)
        return Delta(text, tuple(ids), self.index, logprobs, shown, self.reason)

    def closed(self, now: float) -> Closing:
        """The ledger up to `now`, when the last message leaves or the answer is given up. To be called once."""
        if self._is_waiting:
            self._absorb(HOP, now)
        self._ledger.close(STREAM, now)
        segments = self._ledger.take()
        total = now - self._received_at
        return Closing(segments, total - sum(segment.seconds for segment in segments), total)

    def _take_tokens(self, tokens: session_pb2.Tokens) -> None:
        if self.stopped_at is not None:
            return
        known = len(self._transcript.ids)
        if tokens.first_index > known:
            raise InternalError("tokens of the answer are missing")
        ids, logprobs = tokens.ids[known - tokens.first_index :], self._logprobs(tokens)[known - tokens.first_index :]
        if known + len(ids) > self._request.stopping.max_tokens:
            raise InternalError("the answer has more tokens than were asked for")
        self._texts.append(self._transcript.push(ids, logprobs))

    def _logprobs(self, tokens: session_pb2.Tokens) -> Sequence[TokenLogprobs]:
        """Those of `tokens` if they are asked for; raises InternalError if they are and did not come."""
        if self._request.sampling.logprobs is None:
            return ()
        if tokens.ids and not tokens.logprobs:
            raise InternalError("the answer came without its log probabilities")
        return logprobs_from_pb(tokens)

    def _note_places(self, event: session_pb2.Event) -> None:
        """All places that the scheduler gave this attempt, in order."""
        for place in event.placements:
            names = (place.prefill, place.decode, place.kvstore, place.why)
            self.decisions.append(Decision(event.attempt, *names, self.index, place))

    def _finish(self, event: session_pb2.Event, now: float) -> None:
        finished = event.finished
        if finished.reason not in (session_pb2.Finished.STOP, session_pb2.Finished.LENGTH):
            raise InternalError("the answer ended without a reason")
        self._absorb(HOP, now)
        self._cached_tokens = finished.cached_tokens
        self._note_places(event)
        if not event.placements:
            names = (finished.prefill, finished.decode, finished.kvstore, finished.why)
            self.decisions.append(Decision(event.attempt, *names, self.index))
        self.reason = finish_reason_from_pb(finished)

    def _absorb(self, hop: str, now: float) -> None:
        self._ledger.absorb(hop, self._callee, now)
        self._callee.clear()
        self._is_waiting = False
