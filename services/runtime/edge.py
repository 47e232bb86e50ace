"""The edge of every gRPC server and client: errors to statuses and back, the token check. Handlers just raise.

One table, so that `Overloaded` raised in a worker is `Overloaded` caught in its caller. Only this file aborts an RPC.
"""

from __future__ import annotations

import hmac
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from services.core import errors
from services.core.errors import DiptychError, InternalError, InvalidRequest, Unauthenticated, error_from

log = logging.getLogger(__name__)

T = TypeVar("T")

STATUS: dict[type[DiptychError], grpc.StatusCode] = {
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ContextTooLong: grpc.StatusCode.INVALID_ARGUMENT,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    errors.UnknownModel: grpc.StatusCode.NOT_FOUND,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.RateLimited: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.QueueTimeout: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.NeverFits: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Poisonous: grpc.StatusCode.FAILED_PRECONDITION,
    errors.WorkerLost: grpc.StatusCode.UNAVAILABLE,
    errors.Draining: grpc.StatusCode.UNAVAILABLE,
    errors.NoWorkers: grpc.StatusCode.UNAVAILABLE,
    errors.KVMissing: grpc.StatusCode.ABORTED,
    errors.KVCorrupt: grpc.StatusCode.DATA_LOSS,
    errors.KVIncompatible: grpc.StatusCode.FAILED_PRECONDITION,
    errors.StaleHandoff: grpc.StatusCode.ABORTED,
    errors.DeadlinePassed: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.EngineFault: grpc.StatusCode.INTERNAL,
    errors.InternalError: grpc.StatusCode.INTERNAL,
}

PUBLIC_PREFIXES = ("/diptych.v1.", "/grpc.health.v1.", "/grpc.reflection.")
"""Methods that need no cluster token."""


def opaque(error: BaseException) -> InternalError:
    """What a stranger may know of an unforeseen fault: an id, which the log has beside the whole story."""
    error_id = uuid.uuid4().hex[:12]
    log.error("unforeseen fault %s", error_id, exc_info=error)
    return InternalError(f"internal error {error_id}")


def outcome_of(work: Callable[[], T]) -> T | DiptychError:
    """What `work` returns, or what became of it as an error that may be told.

    For a step on behalf of one request among many: whatever goes wrong is that request's and nobody else's.
    """
    try:
        return work()
    except DiptychError as error:
        return error
    except Exception as error:
        return opaque(error)


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: DiptychError) -> NoReturn:
    """Ends the RPC with the status and trailers of `error`."""
    trailers = [("x-reason", error.reason)]
    if error.field:
        trailers.append(("x-field", error.field))
    if error.retry_after:
        trailers.append(("x-retry-after", f"{error.retry_after:g}"))
    await context.abort(STATUS[type(error)], error.message, tuple(trailers))


def rebuilt(error: grpc.aio.AioRpcError) -> DiptychError:
    """The error that the other side raised; for one that never reached it, what its status means here."""
    trailers = {key: value for key, value in error.trailing_metadata() or ()}
    message = error.details() or "the call failed"
    if reason := trailers.get("x-reason"):
        retry_after = float(trailers.get("x-retry-after", 0))
        return error_from(str(reason), message, field=str(trailers.get("x-field", "")), retry_after=retry_after)
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return errors.DeadlinePassed("the deadline passed")
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return errors.WorkerLost("the other side is not there")
    return InternalError(message)


@contextmanager
def remote_errors() -> Iterator[None]:
    """Around a call: what the other side raised is raised here, as the same class."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise rebuilt(error) from error


class _Undecodable(Message):
    """Stands for a request that is not a valid message; never handed to a servicer."""


class Edge(grpc.aio.ServerInterceptor):
    """Wraps every handler of a server."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        refusal = self._refusal(handler_call_details)
        return _wrapped(handler, refusal)

    def _refusal(self, details: grpc.HandlerCallDetails) -> DiptychError | None:
        if not self._token or str(details.method).startswith(PUBLIC_PREFIXES):
            return None
        given = next((value for key, value in details.invocation_metadata or () if key == "authorization"), "")
        wanted = b"Bearer " + self._token
        if hmac.compare_digest(given.encode() if isinstance(given, str) else given, wanted):
            return None
        return Unauthenticated("this call needs the cluster's token")


def _wrapped(handler: Any, refusal: DiptychError | None) -> grpc.RpcMethodHandler[Any, Any]:
    """`handler` with its errors mapped; grpcio keeps the four kinds of handler in four attributes."""
    decode = _tolerant(handler.request_deserializer)
    if handler.response_streaming:
        inner = handler.stream_stream or handler.unary_stream

        # Written here and not yielded to grpcio: a generator suspended at a yield would never hear of a cancellation.
        async def streaming(request: Any, context: Any) -> None:
            async with _Guard(context, refusal, request):
                answers = inner(request, context)
                if not hasattr(answers, "__aiter__"):
                    await answers
                    return
                async with aclosing(answers):
                    async for answer in answers:
                        await context.write(answer)

        make = (
            grpc.stream_stream_rpc_method_handler if handler.request_streaming else grpc.unary_stream_rpc_method_handler
        )
        return make(streaming, decode, handler.response_serializer)
    inner = handler.stream_unary or handler.unary_unary

    async def single(request: Any, context: Any) -> Any:
        async with _Guard(context, refusal, request):
            return await inner(request, context)

    make = grpc.stream_unary_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
    return make(single, decode, handler.response_serializer)


def _tolerant(decode: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    if decode is None:
        return None

    def tolerant(raw: bytes) -> Any:
        try:
            return decode(raw)
        except DecodeError:
            return _Undecodable

    return tolerant


class _Guard:
    """Turns whatever leaves a handler into a status. Cancellation is not an error of ours and passes through."""

    def __init__(self, context: Any, refusal: DiptychError | None, request: Any) -> None:
        self._context = context
        self._refusal = refusal
        self._request = request

    async def __aenter__(self) -> None:
        if self._refusal is not None:
            await abort(self._context, self._refusal)
        if self._request is _Undecodable:
            await abort(self._context, InvalidRequest("the request is not a valid message; is its text valid UTF-8?"))

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, DiptychError):
            await abort(self._context, error)
        if isinstance(error, Exception) and not isinstance(error, grpc.aio.AbortError | grpc.aio.BaseError):
            await abort(self._context, opaque(error))
