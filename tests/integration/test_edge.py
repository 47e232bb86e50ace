"""Errors cross a real gRPC connection as the same class; strangers learn nothing; every error has a status."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from services.core.errors import BY_REASON, DiptychError, error_from
from services.pb import inference_pb2, inference_pb2_grpc, operations_pb2, operations_pb2_grpc
from services.runtime import dial
from services.runtime.edge import STATUS, remote_errors
from services.runtime.server import Parts, serving
from services.runtime.settings import ServiceSettings
from tests.support.processes import process_of


class Inference(inference_pb2_grpc.InferenceServicer):
    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self.closed = asyncio.Event()

    async def ListModels(self, request: object, context: object) -> inference_pb2.ListModelsResponse:
        self._act()
        return inference_pb2.ListModelsResponse()

    async def Generate(self, request: object, context: object) -> AsyncIterator[inference_pb2.GenerateResponse]:
        try:
            while True:
                yield inference_pb2.GenerateResponse(text="x" * 1000)
                self._act()
                await asyncio.sleep(0)
        finally:
            self.closed.set()


@asynccontextmanager
async def served(servicer: Inference, token: str = "") -> AsyncIterator[grpc.aio.Channel]:
    async with process_of("gateway", ServiceSettings(token=token)) as (process, _):
        register = [lambda server: inference_pb2_grpc.add_InferenceServicer_to_server(servicer, server)]
        parts = Parts(register, ["diptych.v1.Inference"], list)
        async with serving(process, parts) as server, dial.channel(server.address) as channel:
            yield channel


def raiser(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def test_every_error_has_a_status() -> None:
    assert set(STATUS) == set(BY_REASON.values())


@pytest.mark.parametrize("reason", sorted(BY_REASON))
async def test_what_is_raised_there_is_caught_here(reason: str) -> None:
    error = error_from(reason, "what was wrong", field="field", retry_after=2.5)
    async with served(Inference(raiser(error))) as channel:
        with pytest.raises(BY_REASON[reason]) as caught, remote_errors():
            await inference_pb2_grpc.InferenceStub(channel).ListModels(inference_pb2.ListModelsRequest())
    assert type(caught.value) is BY_REASON[reason]
    assert (caught.value.message, caught.value.field, caught.value.retry_after) == ("what was wrong", "field", 2.5)


async def test_an_unforeseen_fault_tells_strangers_only_an_id(caplog: pytest.LogCaptureFixture) -> None:
    async with served(Inference(raiser(RuntimeError("password is hunter2")))) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await inference_pb2_grpc.InferenceStub(channel).ListModels(inference_pb2.ListModelsRequest())
    assert caught.value.code() == grpc.StatusCode.INTERNAL
    assert "hunter2" not in str(caught.value)
    error_id = (caught.value.details() or "").removeprefix("internal error ")
    assert error_id in caplog.text and "hunter2" in caplog.text


async def test_a_request_that_is_no_message_is_an_invalid_argument() -> None:
    """Field 2 (text) of GenerateRequest with bytes that are not UTF-8."""
    async with served(Inference(lambda: None)) as channel:
        call = channel.unary_stream("/diptych.v1.Inference/Generate", None, None)(b"\x12\x02\xff\xfe")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_stream_that_the_client_leaves_is_closed_on_the_server() -> None:
    servicer = Inference(lambda: None)
    async with served(servicer) as channel:
        call = inference_pb2_grpc.InferenceStub(channel).Generate(inference_pb2.GenerateRequest())
        await call.read()
        call.cancel()
        async with asyncio.timeout(5):
            await servicer.closed.wait()


async def test_internal_calls_need_the_token_and_public_ones_do_not() -> None:
    async with served(Inference(lambda: None), token="sécret") as channel:
        operations = operations_pb2_grpc.OperationsStub(channel)
        for metadata in ((), (("authorization", "Bearer wrong"),)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await operations.Status(operations_pb2.StatusRequest(), metadata=metadata)
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        await inference_pb2_grpc.InferenceStub(channel).ListModels(inference_pb2.ListModelsRequest())


async def test_a_dead_address_is_a_lost_worker() -> None:
    async with dial.channel("127.0.0.1:1") as channel:
        with pytest.raises(DiptychError) as caught, remote_errors():
            await operations_pb2_grpc.OperationsStub(channel).Status(operations_pb2.StatusRequest(), timeout=5)
    assert caught.value.retry == "elsewhere"
