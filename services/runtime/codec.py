"""Protobuf messages to core objects and back; the only place that knows both. Every pair round-trips (tested)."""

from collections.abc import Iterable

from google.protobuf.message import DecodeError

from services.core.block_facts import SHORT_BYTES, BlockSource, Facts, ShortHash, Stock
from services.core.errors import DiptychError, InternalError, InvalidRequest, error_from
from services.core.ids import RequestId, RequestKey
from services.core.ledger import Segment
from services.core.plan import TokenLogprobs
from services.core.request import FinishReason, Request, Role, Sampling, Stopping
from services.pb import kvstore_pb2, session_pb2

_ROLES = {
    Role.WHOLE: session_pb2.ROLE_WHOLE,
    Role.PREFILL: session_pb2.ROLE_PREFILL,
    Role.DECODE: session_pb2.ROLE_DECODE,
}
_ROLES_BACK = {value: role for role, value in _ROLES.items()}
_REASONS = {
    FinishReason.STOP: session_pb2.Finished.STOP,
    FinishReason.LENGTH: session_pb2.Finished.LENGTH,
    FinishReason.HANDED_OVER: session_pb2.Finished.HANDED_OVER,
}
_REASONS_BACK = {value: reason for reason, value in _REASONS.items()}


def start_to_pb(
    request: Request, now: float, traceparent: str, kvstore: str = "", sources: Iterable[BlockSource] = ()
) -> session_pb2.Start:
    """`now` is on the clock of `request.deadline`; only the time left crosses the wire."""
    start = session_pb2.Start(
        request_id=request.key.request_id,
        attempt=request.key.attempt,
        prompt=request.prompt,
        emitted=request.emitted,
        sampling=_sampling_to_pb(request.sampling),
        stopping=session_pb2.StopSettings(
            max_tokens=request.stopping.max_tokens,
            min_tokens=request.stopping.min_tokens,
            stop_ids=sorted(request.stopping.stop_ids),
        ),
        role=_ROLES[request.role],
        salt=request.salt,
        priority=request.priority,
        client=request.client,
        traffic_class=request.traffic_class,
        traceparent=traceparent,
        kvstore=kvstore,
        sources=[session_pb2.BlockSource(kvstore=source.kvstore, blocks=source.blocks) for source in sources],
    )
    if request.deadline is not None:
        start.remaining_seconds = max(request.deadline - now, 0.0)
    return start


def request_from_pb(start: session_pb2.Start, now: float) -> Request:
    """The request on the receiver's clock. Raises InvalidRequest for one that no service could work on."""
    role = _ROLES_BACK.get(start.role)
    if role is None:
        raise InvalidRequest("role is not known here", field="role")
    if not start.request_id:
        raise InvalidRequest("request_id must not be empty", field="request_id")
    if not start.prompt:
        raise InvalidRequest("prompt must not be empty", field="prompt")
    if start.stopping.max_tokens <= len(start.emitted):
        raise InvalidRequest("nothing is left to answer within max_tokens", field="max_tokens")
    return Request(
        key=key_from_pb(start),
        prompt=tuple(start.prompt),
        emitted=tuple(start.emitted),
        sampling=_sampling_from_pb(start.sampling),
        stopping=Stopping(
            max_tokens=start.stopping.max_tokens,
            min_tokens=start.stopping.min_tokens,
            stop_ids=frozenset(start.stopping.stop_ids),
        ),
        role=role,
        salt=start.salt,
        priority=start.priority,
        client=start.client,
        traffic_class=start.traffic_class,
        deadline=now + start.remaining_seconds if start.HasField("remaining_seconds") else None,
    )


def sources_from_pb(start: session_pb2.Start) -> tuple[BlockSource, ...]:
    """Stores that are said to hold the beginning of the prompt."""
    return tuple(BlockSource(source.kvstore, source.blocks) for source in start.sources)


def _sampling_to_pb(sampling: Sampling) -> session_pb2.DrawSettings:
    return session_pb2.DrawSettings(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=sampling.seed,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=[session_pb2.LogitBias(token=token, bias=bias) for token, bias in sampling.logit_bias],
        logprobs=sampling.logprobs,
    )


def _sampling_from_pb(drawing: session_pb2.DrawSettings) -> Sampling:
    return Sampling(
        temperature=drawing.temperature,
        top_k=drawing.top_k,
        top_p=drawing.top_p,
        min_p=drawing.min_p,
        seed=drawing.seed,
        repetition_penalty=drawing.repetition_penalty or 1.0,
        presence_penalty=drawing.presence_penalty,
        frequency_penalty=drawing.frequency_penalty,
        logit_bias=tuple((entry.token, entry.bias) for entry in drawing.logit_bias),
        logprobs=drawing.logprobs if drawing.HasField("logprobs") else None,
    )


Keyed = (
    session_pb2.Start
    | session_pb2.FirstToken
    | session_pb2.Cancel
    | session_pb2.Finish
    | session_pb2.Event
    | kvstore_pb2.HandoffKey
)


def key_from_pb(message: Keyed) -> RequestKey:
    """The request attempt a message speaks of."""
    return RequestKey(RequestId(message.request_id), message.attempt)


def handoff_to_pb(key: RequestKey) -> kvstore_pb2.HandoffKey:
    """A hand-over is named by its request attempt."""
    return kvstore_pb2.HandoffKey(request_id=key.request_id, attempt=key.attempt)


def facts_to_pb(facts: Facts, *, is_inventory: bool = False) -> kvstore_pb2.BlockFacts:
    stock = facts.stock
    return kvstore_pb2.BlockFacts(
        store=stock.store,
        address=stock.address,
        incarnation=stock.incarnation,
        fingerprint=stock.fingerprint,
        format=stock.format,
        sequence=facts.sequence,
        added=facts.added,
        removed=facts.removed,
        is_inventory=is_inventory,
    )


def facts_from_bytes(payload: bytes) -> Facts:
    """As they come on the bus. Raises InvalidRequest if they cannot be read."""
    try:
        message = kvstore_pb2.BlockFacts.FromString(payload)
    except DecodeError:
        raise InvalidRequest("facts are no message") from None
    return facts_from_pb(message)


def facts_from_pb(message: kvstore_pb2.BlockFacts) -> Facts:
    """Raises InvalidRequest if they do not say of which store, or name a block by anything but a short hash."""
    if not message.address or not message.incarnation:
        raise InvalidRequest("facts do not say of which store", field="address")
    if any(len(raw) != SHORT_BYTES for raws in (message.added, message.removed) for raw in raws):
        raise InvalidRequest("facts name a block by something else than a short hash", field="added")
    stock = Stock(message.store, message.address, message.incarnation, message.fingerprint, message.format)
    return Facts(stock, message.sequence, tuple(map(ShortHash, message.added)), tuple(map(ShortHash, message.removed)))


def segments_to_pb(segments: Iterable[Segment]) -> list[session_pb2.TimeSegment]:
    return [session_pb2.TimeSegment(name=segment.name, seconds=segment.seconds) for segment in segments]


def segments_from_pb(segments: Iterable[session_pb2.TimeSegment]) -> list[Segment]:
    return [Segment(segment.name, segment.seconds) for segment in segments]


def tokens_event(
    key: RequestKey,
    first_index: int,
    ids: Iterable[int],
    segments: Iterable[Segment] = (),
    logprobs: Iterable[TokenLogprobs] = (),
) -> session_pb2.Event:
    tokens = session_pb2.Tokens(first_index=first_index, ids=ids, logprobs=map(_logprobs_to_pb, logprobs))
    return session_pb2.Event(
        request_id=key.request_id, attempt=key.attempt, tokens=tokens, segments=segments_to_pb(segments)
    )


def logprobs_from_pb(tokens: session_pb2.Tokens) -> tuple[TokenLogprobs, ...]:
    """None, or one for each token. Raises InternalError if the tokens come with log probabilities that do not fit."""
    if not tokens.logprobs:
        return ()
    has_all = len(tokens.logprobs) == len(tokens.ids)
    if not has_all or any(len(each.top_ids) != len(each.top_logprobs) for each in tokens.logprobs):
        raise InternalError("log probabilities do not fit the tokens")
    return tuple(
        TokenLogprobs(each.logprob, tuple(zip(each.top_ids, each.top_logprobs, strict=True)))
        for each in tokens.logprobs
    )


def _logprobs_to_pb(logprobs: TokenLogprobs) -> session_pb2.TokenLogprobs:
    return session_pb2.TokenLogprobs(
        logprob=logprobs.logprob,
        top_ids=[token for token, _ in logprobs.top],
        top_logprobs=[logprob for _, logprob in logprobs.top],
    )


def finished_event(
    key: RequestKey, reason: FinishReason, segments: Iterable[Segment] = (), cached_tokens: int = 0
) -> session_pb2.Event:
    finished = session_pb2.Finished(reason=_REASONS[reason], cached_tokens=cached_tokens)
    return session_pb2.Event(
        request_id=key.request_id, attempt=key.attempt, finished=finished, segments=segments_to_pb(segments)
    )


def failed_event(key: RequestKey, error: DiptychError, segments: Iterable[Segment] = ()) -> session_pb2.Event:
    failed = session_pb2.Failed(
        reason=error.reason, message=error.message, field=error.field, retry_after=error.retry_after
    )
    return session_pb2.Event(
        request_id=key.request_id, attempt=key.attempt, failed=failed, segments=segments_to_pb(segments)
    )


def finish_reason_from_pb(finished: session_pb2.Finished) -> FinishReason:
    return _REASONS_BACK[finished.reason]


def error_from_pb(failed: session_pb2.Failed) -> DiptychError:
    return error_from(failed.reason, failed.message, field=failed.field, retry_after=failed.retry_after)
