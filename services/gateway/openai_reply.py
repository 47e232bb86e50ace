"""Answers and errors in OpenAI's JSON. Only shapes; decides nothing."""

import json
from typing import Any

from services.core import errors
from services.core.errors import DiptychError
from services.gateway.answer import Usage
from services.gateway.call import Done, Head
from services.gateway.served_model import ServedModel

Json = dict[str, Any]

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


class Shapes:
    """The bodies of one answer: chat or completion."""

    def __init__(self, head: Head, created: int, *, is_chat: bool) -> None:
        """`created` is in seconds since 1970."""
        self._is_chat = is_chat
        prefix, kind = ("chatcmpl", "chat.completion") if is_chat else ("cmpl", "text_completion")
        chunk_kind = "chat.completion.chunk" if is_chat else kind
        self._whole = {"id": f"{prefix}-{head.request_id}", "object": kind, "created": created, "model": head.model}
        self._chunk = {**self._whole, "object": chunk_kind}

    def opening(self) -> list[Json]:
        """Chunks before the first text."""
        return [self._chunk_of(delta={"role": "assistant", "content": ""})] if self._is_chat else []

    def text(self, text: str) -> Json:
        return self._chunk_of(delta={"content": text}) if self._is_chat else self._chunk_of(text=text)

    def closing(self, done: Done, *, with_usage: bool) -> list[Json]:
        """The terminal chunk, and one more with the usage if that was asked for. The last carries the ledger."""
        empty: Json = {"delta": {}} if self._is_chat else {"text": ""}
        chunks = [self._chunk_of(done.reason.value, **empty)]
        if with_usage:
            chunks.append({**self._chunk, "choices": [], "usage": _usage(done.usage)})
        chunks[-1]["diptych"] = _ledger(done)
        return chunks

    def whole(self, text: str, done: Done) -> Json:
        """The body of an answer that is not streamed."""
        choice: Json = {"index": 0, "finish_reason": done.reason.value, "logprobs": None}
        if self._is_chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        return {**self._whole, "choices": [choice], "usage": _usage(done.usage), "diptych": _ledger(done)}

    def _chunk_of(self, finish_reason: str | None = None, **content: object) -> Json:
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}
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
