"""The gRPC API: message, codec, one call, codec, message. Errors are raised; the edge makes statuses of them."""

import time
from typing import Any

import grpc.aio

from services.gateway.answer import Delta
from services.gateway.ask import Ask
from services.gateway.call import Call, Done, Head, cleaned_id
from services.gateway.clients import key_of
from services.gateway.generations import Generations
from services.gateway.grpc_codec import ask_from_pb, last_response_to_pb, model_to_pb, record_to_pb, response_to_pb
from services.gateway.records import Records
from services.gateway.served_model import ServedModel
from services.pb import inference_pb2, inference_pb2_grpc

SERVICE = inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name

Context = grpc.aio.ServicerContext[Any, Any]


class Inference(inference_pb2_grpc.InferenceServicer):
    """The public service."""

    def __init__(self, generations: Generations, model: ServedModel, records: Records) -> None:
        self._generations = generations
        self._model = model
        self._records = records

    async def Generate(  # type: ignore[override]  # writes to the context, so that a cancellation lands in this coroutine
        self, request: inference_pb2.GenerateRequest, context: Context
    ) -> None:
        call = call_of(request, context, time.monotonic())
        async with self._generations.taken_up(call) as live:
            await context.send_initial_metadata(_head_metadata(live.head, call))
            await self._generations.answer(live, GrpcCaller(request, context, self._model))

    def register(self, server: grpc.aio.Server) -> None:
        inference_pb2_grpc.add_InferenceServicer_to_server(self, server)

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: Context
    ) -> inference_pb2.ListModelsResponse:
        return inference_pb2.ListModelsResponse(models=[model_to_pb(self._model)])

    async def GetRequest(
        self, request: inference_pb2.GetRequestRequest, context: Context
    ) -> inference_pb2.RequestRecord:
        return record_to_pb(self._records.get(request.request_id))


class GrpcCaller:
    """The client's side of one Generate."""

    def __init__(self, request: inference_pb2.GenerateRequest, context: Context, model: ServedModel) -> None:
        self._request = request
        self._context = context
        self._model = model

    def ask(self) -> Ask:
        return ask_from_pb(self._request)

    async def send(self, delta: Delta) -> None:
        await self._context.write(response_to_pb(delta, self._model))

    async def finish(self, delta: Delta, done: Done) -> None:
        await self._context.write(last_response_to_pb(delta, done, self._model))


def call_of(request: inference_pb2.GenerateRequest, context: Context, now: float) -> Call:
    """What metadata and deadline say of a call."""
    metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
    remaining = context.time_remaining()
    return Call(
        received_at=now,
        operation="chat" if request.WhichOneof("prompt") == "chat" else "text_completion",
        traceparent=metadata.get("traceparent", ""),
        client_request_id=cleaned_id(metadata.get("x-request-id", "")),
        deadline=None if remaining is None else now + remaining,
        key=key_of(metadata.get("authorization", "")),
    )


def _head_metadata(head: Head, call: Call) -> tuple[tuple[str, str], ...]:
    metadata = [("x-request-id", str(head.request_id)), ("x-trace-id", head.trace_id)]
    if call.client_request_id:
        metadata.append(("x-client-request-id", call.client_request_id))
    return tuple(metadata)
