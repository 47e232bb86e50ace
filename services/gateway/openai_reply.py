"""Answers and errors in OpenAI's JSON. Only shapes; decides nothing."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from services.core import errors
from services.core.errors import DiptychError
from services.core.request import FinishReason
from services.gateway.answer import Delta, Usage
from services.gateway.call import Done, Head
from services.gateway.openai_logprobs import Json, LogprobShapes
from services.gateway.served_model import ServedModel
from services.gateway.transcript import ShownToken

STREAM_END = b"data: [DONE]\n\n"

_STATUS: dict[type[DiptychError], tuple[int, str]] = {
    errors.InvalidRequest: (400, "invalid_request_error"),
    errors.ContextTooLong: (400, "invalid_request_error"),
    errors.Unauthenticated: (401, "authentication_error"),
    errors.PermissionDenied: (403, "permission_error"),
    errors.UnknownModel: (404, "not_found_error"),
    errors.NotFound: (404, "not_found_error"),
    errors.RateLimited: (429, "rate_limit_error"),
    errors.Overloaded: (429, "rate_limit_error"),
    errors.QueueTimeout: (429, "rate_limit_error"),
    errors.NeverFits: (400, "invalid_request_error"),
    # Clients try again by themselves after 5xx.
    errors.Poisonous: (422, "invalid_request_error"),
    errors.WorkerLost: (503, "service_unavailable_error"),
    errors.Draining: (503, "service_unavailable_error"),
    errors.NoWorkers: (503, "service_unavailable_error"),
    errors.DeadlinePassed: (504, "timeout_error"),
}
_CODES = {
    errors.UnknownModel: "model_not_found",
    errors.ContextTooLong: "context_length_exceeded",
}


def status_of(error: DiptychError) -> int:
    """The HTTP status; 500 for what should not have come this far."""
    return _STATUS.get(type(error), (500, ""))[0]


def error_body(error: DiptychError) -> Json:
    """OpenAI's error object. `code` is OpenAI's where it has one, else our name of the error."""
    kind = _STATUS.get(type(error), (500, "server_error"))[1]
    code = _CODES.get(type(error), error.reason)
    return {"error": {"message": error.message, "type": kind, "param": error.field or None, "code": code}}


def encoded(body: Json) -> bytes:
    """Strict JSON: a number that is not finite is an error here rather than at the client."""
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def event(body: Json) -> bytes:
    """One server-sent event."""
    return b"data: " + encoded(body) + b"\n\n"


@dataclass(slots=True)
class Choice:
    """One answer as far as it is collected, for a reply that is not streamed."""

    texts: list[str] = field(default_factory=list)
    shown: list[ShownToken] = field(default_factory=list)
    reason: FinishReason | None = None

    def add(self, delta: Delta) -> None:
        self.texts.append(delta.text)
        self.shown.extend(delta.shown)
        self.reason = delta.reason


class Shapes:
    """The bodies of one reply: chat or completion."""

    def __init__(self, head: Head, created: int, logprobs: LogprobShapes, *, is_chat: bool) -> None:
        """`created` is in seconds since 1970."""
        self._is_chat = is_chat
        self._logprobs = logprobs.chat if is_chat else logprobs.completion
        prefix, kind = ("chatcmpl", "chat.completion") if is_chat else ("cmpl", "text_completion")
        chunk_kind = "chat.completion.chunk" if is_chat else kind
        self._whole = {"id": f"{prefix}-{head.request_id}", "object": kind, "created": created, "model": head.model}
        self._chunk = {**self._whole, "object": chunk_kind}

    def opening(self, index: int) -> list[Json]:
        """Chunks before the first text of an answer."""
        return [self._chunk_of(index, delta={"role": "assistant", "content": ""})] if self._is_chat else []

    def text(self, delta: Delta) -> list[Json]:
        """The chunk for what has come, if anything of it is shown."""
        if not (delta.text or delta.shown):
            return []
        content: Json = {"delta": {"content": delta.text}} if self._is_chat else {"text": delta.text}
        logprobs = self._logprobs(delta.shown) if delta.shown else None
        return [self._chunk_of(delta.index, logprobs=logprobs, **content)]

    def ending(self, index: int, reason: FinishReason) -> Json:
        """The last chunk of an answer."""
        empty: Json = {"delta": {}} if self._is_chat else {"text": ""}
        return self._chunk_of(index, reason.value, **empty)

    def closing(self, ending: Json, done: Done, *, with_usage: bool) -> list[Json]:
        """`ending`, and one more chunk with the usage if that was asked for. The last carries the ledger."""
        chunks = [ending]
        if with_usage:
            chunks.append({**self._chunk, "choices": [], "usage": _usage(done.usage)})
        chunks[-1]["diptych"] = _ledger(done)
        return chunks

    def whole(self, choices: Mapping[int, Choice], done: Done, *, with_logprobs: bool) -> Json:
        """The body of a reply that is not streamed; `choices` by index."""
        listed = [self._choice(index, choices[index], with_logprobs) for index in sorted(choices)]
        return {**self._whole, "choices": listed, "usage": _usage(done.usage), "diptych": _ledger(done)}

    def _choice(self, index: int, choice: Choice, with_logprobs: bool) -> Json:
        logprobs = self._logprobs(choice.shown) if with_logprobs else None
        reason = choice.reason.value if choice.reason else None
        body: Json = {"index": index, "finish_reason": reason, "logprobs": logprobs}
        text = "".join(choice.texts)
        if self._is_chat:
            return {**body, "message": {"role": "assistant", "content": text, "refusal": None}}
        return {**body, "text": text}

    def _chunk_of(
        self, index: int, finish_reason: str | None = None, logprobs: Json | None = None, **content: object
    ) -> Json:
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": finish_reason}
        return {**self._chunk, "choices": [choice]}


def model_body(model: ServedModel, created: int) -> Json:
    return {
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": "diptych",
        "max_model_len": model.context,
        "digest": model.digest,
    }


def _usage(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _ledger(done: Done) -> Json:
    closing = done.closing
    return {
        "request_id": done.head.request_id,
        "trace_id": done.head.trace_id,
        "ledger": [{"segment": segment.name, "seconds": segment.seconds} for segment in closing.segments],
        "remainder_seconds": closing.remainder_seconds,
        "total_seconds": closing.total_seconds,
        "seed": done.seed,
    }
