"""The public messages to the gateway's own objects and back."""

from services.core.errors import InvalidRequest
from services.core.ledger import Segment
from services.core.plan import TokenLogprobs
from services.core.request import FinishReason
from services.gateway.answer import Decision, Delta, Usage
from services.gateway.ask import Ask, ChatMessage, ChatPrompt, Prompt, TextPrompt, TokenPrompt
from services.gateway.call import Done
from services.gateway.records import Record
from services.gateway.served_model import ServedModel
from services.pb import inference_pb2, session_pb2

_REASONS = {
    FinishReason.STOP: inference_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
}


def ask_from_pb(request: inference_pb2.GenerateRequest) -> Ask:
    """Raises InvalidRequest if there is no prompt."""
    sampling, stopping = request.sampling, request.stopping
    return Ask(
        prompt=_prompt(request),
        model=request.model,
        temperature=sampling.temperature if sampling.HasField("temperature") else 1.0,
        top_k=sampling.top_k,
        top_p=sampling.top_p if sampling.HasField("top_p") else 1.0,
        min_p=sampling.min_p,
        seed=sampling.seed if sampling.HasField("seed") else None,
        repetition_penalty=sampling.repetition_penalty if sampling.HasField("repetition_penalty") else 1.0,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=tuple(sampling.logit_bias.items()),
        logprobs=sampling.logprobs if sampling.HasField("logprobs") else None,
        n=request.n if request.HasField("n") else 1,
        max_tokens=stopping.max_tokens if stopping.HasField("max_tokens") else None,
        min_tokens=stopping.min_tokens,
        stop=tuple(stopping.stop),
        stop_token_ids=tuple(stopping.stop_token_ids),
        ignore_eos=stopping.ignore_eos,
        user=request.user,
        service_tier=request.service_tier,
        cache_salt=request.cache_salt,
        priority=request.priority,
    )


def _prompt(request: inference_pb2.GenerateRequest) -> Prompt:
    match request.WhichOneof("prompt"):
        case "text":
            return TextPrompt(request.text, "text")
        case "chat":
            messages = tuple(ChatMessage(turn.role, turn.content) for turn in request.chat.messages)
            return ChatPrompt(messages, "messages")
        case "token_ids":
            return TokenPrompt(tuple(request.token_ids.ids), "token_ids")
        case _:
            raise InvalidRequest("one of text, chat and token_ids must be set", field="prompt")


def response_to_pb(delta: Delta, model: ServedModel) -> inference_pb2.GenerateResponse:
    return inference_pb2.GenerateResponse(
        text=delta.text,
        token_ids=delta.token_ids,
        index=delta.index,
        logprobs=[
            _logprobs(token, logprobs, model) for token, logprobs in zip(delta.token_ids, delta.logprobs, strict=False)
        ],
        finish_reason=_REASONS[delta.reason] if delta.reason else inference_pb2.FINISH_REASON_UNSPECIFIED,
    )


def _logprobs(token: int, logprobs: TokenLogprobs, model: ServedModel) -> inference_pb2.Logprobs:
    def one(token: int, logprob: float) -> inference_pb2.TokenLogprob:
        return inference_pb2.TokenLogprob(token_id=token, logprob=logprob, bytes=model.token_bytes(token))

    return inference_pb2.Logprobs(drawn=one(token, logprobs.logprob), top=[one(*each) for each in logprobs.top])


def last_response_to_pb(delta: Delta, done: Done, model: ServedModel) -> inference_pb2.GenerateResponse:
    response = response_to_pb(delta, model)
    response.done.CopyFrom(
        inference_pb2.Done(
            finish_reason=_REASONS[done.reason],
            usage=_usage(done.usage),
            ledger=_segments(done.closing.segments),
            remainder_seconds=done.closing.remainder_seconds,
            total_seconds=done.closing.total_seconds,
            request_id=done.head.request_id,
            trace_id=done.head.trace_id,
            seed=done.seed,
        )
    )
    return response


def record_to_pb(record: Record) -> inference_pb2.RequestRecord:
    return inference_pb2.RequestRecord(
        request_id=record.request_id,
        trace_id=record.trace_id,
        outcome=record.outcome,
        usage=_usage(record.usage),
        ledger=_segments(record.closing.segments),
        remainder_seconds=record.closing.remainder_seconds,
        total_seconds=record.closing.total_seconds,
        decisions=[decision_to_pb(decision) for decision in record.decisions],
    )


def model_to_pb(model: ServedModel) -> inference_pb2.Model:
    return inference_pb2.Model(name=model.name, context=model.context, digest=model.digest)


def _usage(usage: Usage) -> inference_pb2.Usage:
    return inference_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
    )


def _segments(segments: tuple[Segment, ...]) -> list[inference_pb2.Segment]:
    return [inference_pb2.Segment(name=segment.name, seconds=segment.seconds) for segment in segments]


def decision_to_pb(decision: Decision) -> inference_pb2.Decision:
    placed = inference_pb2.Decision(
        attempt=decision.attempt,
        prefill=decision.prefill,
        decode=decision.decode,
        kvstore=decision.kvstore,
        why=decision.why,
        index=decision.index,
    )
    if (record := decision.record) is not None:
        placed.policy, placed.reason, placed.others = record.policy, record.reason, record.others
        placed.ttft_seconds, placed.itl_seconds = record.ttft_seconds, record.itl_seconds
        placed.uncached_tokens = record.uncached_tokens
        placed.candidates.extend(map(_candidate, record.candidates))
    return placed


def _candidate(candidate: session_pb2.PlacementCandidate) -> inference_pb2.Candidate:
    return inference_pb2.Candidate(
        role=candidate.role,
        worker=candidate.worker,
        cost_seconds=candidate.cost_seconds,
        terms=[inference_pb2.Segment(name=term.name, seconds=term.seconds) for term in candidate.terms],
        cached_blocks=candidate.cached_blocks,
    )
