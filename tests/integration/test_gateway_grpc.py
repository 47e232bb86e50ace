"""The gRPC API of a real gateway in front of a scripted scheduler."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from services.core.errors import Draining, EngineFault, Overloaded
from services.core.request import FinishReason
from services.pb import inference_pb2
from tests.support.gateway_world import END, GatewayWorld, answering, free_port, gateway_world, ids_of, tiny_prepared
from tests.support.scripted_scheduler import Started, scripted_scheduler

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONTEXT = 128
TEXT = "Grüße 🙂!"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_prepared(tmp_path_factory.mktemp("model"), CONTEXT)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(model: Path) -> AsyncIterator[GatewayWorld]:
    async with gateway_world(model) as world:
        yield world


@pytest_asyncio.fixture(loop_scope="module")
async def world(shared: GatewayWorld) -> AsyncIterator[GatewayWorld]:
    """One gateway for all tests, of which each must leave nothing behind."""
    await shared.connected()
    shared.scheduler.reset()
    yield shared
    await shared.nothing_held()


def ask(text: str = "Hello", **fields: object) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(text=text, **fields)


async def answer_to(
    world: GatewayWorld, request: inference_pb2.GenerateRequest
) -> list[inference_pb2.GenerateResponse]:
    return [response async for response in world.inference.Generate(request)]


async def refusal_of(
    world: GatewayWorld, request: inference_pb2.GenerateRequest, **call: object
) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in world.inference.Generate(request, **call):
            pass
    return caught.value


async def test_an_answer_streams_as_text_with_its_ids_and_a_last_message(world: GatewayWorld) -> None:
    world.scheduler.script = answering(TEXT)
    responses = await answer_to(world, ask(sampling=inference_pb2.Sampling(seed=9)))
    assert "".join(response.text for response in responses) == TEXT
    assert [token for response in responses for token in response.token_ids] == [*ids_of(TEXT), END]
    assert [response.HasField("done") for response in responses] == [False] * (len(responses) - 1) + [True]
    done = responses[-1].done
    assert (done.finish_reason, done.seed) == (inference_pb2.FINISH_REASON_STOP, 9)
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (len(ids_of("Hello")), len(ids_of(TEXT)) + 1)
    assert done.usage.cached_tokens == 3


async def test_the_scheduler_gets_ids_settings_and_the_trace(world: GatewayWorld) -> None:
    world.scheduler.script = answering("x")
    sampling = inference_pb2.Sampling(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, seed=-5)
    stopping = inference_pb2.Stopping(max_tokens=7, min_tokens=2, stop_token_ids=[40])
    chat = inference_pb2.Chat(messages=[inference_pb2.ChatMessage(role="user", content="Hi")])
    request = inference_pb2.GenerateRequest(chat=chat, sampling=sampling, stopping=stopping)
    await answer_to(world, request)
    start = (await world.started()).start
    assert start.prompt[0] == 1 and list(start.prompt).count(1) == 2
    drawn = start.sampling
    assert (drawn.temperature, drawn.top_k, drawn.top_p, drawn.min_p, drawn.seed) == (0.5, 3, 0.9, 0.1, -5)
    assert (start.stopping.max_tokens, start.stopping.min_tokens) == (7, 2)
    assert {2, 40} <= set(start.stopping.stop_ids)
    assert not start.HasField("remaining_seconds")


async def test_the_ledger_sums_to_the_clients_own_stopwatch(world: GatewayWorld) -> None:
    world.scheduler.script = answering(TEXT)
    await answer_to(world, ask())
    began = time.monotonic()
    done = (await answer_to(world, ask()))[-1].done
    elapsed = time.monotonic() - began
    names = [segment.name for segment in done.ledger]
    assert names == ["gateway.tokenize", "hop.gateway_scheduler", "decode.run", "gateway.stream"]
    assert all(segment.seconds >= 0 for segment in done.ledger)
    total = sum(segment.seconds for segment in done.ledger) + done.remainder_seconds
    assert total == pytest.approx(done.total_seconds, abs=1e-9)
    assert done.total_seconds <= elapsed
    assert abs(done.remainder_seconds) < 0.001


@pytest.mark.parametrize(
    ("seam", "segment"),
    [
        ("gateway.tokenize", "gateway.tokenize"),
        ("gateway.start", "hop.gateway_scheduler"),
        ("gateway.stream", "gateway.stream"),
    ],
)
async def test_a_planted_delay_appears_in_its_own_segment_and_nowhere_else(
    model: Path, seam: str, segment: str
) -> None:
    async with gateway_world(model, faults={seam: 0.2}) as world:
        world.scheduler.script = answering("x")
        ledgers = [(await answer_to(world, ask()))[-1].done.ledger for _ in range(4)]
        # The shortest of several, for a busy machine only lengthens them.
        seconds = {
            one.name: min(each.seconds for ledger in ledgers for each in ledger if each.name == one.name)
            for one in ledgers[0]
        }
        assert 0.2 <= seconds.pop(segment) < 0.3
        assert sum(seconds.values()) < 0.1


async def test_a_stop_string_ends_the_answer_and_tells_the_scheduler_where(world: GatewayWorld) -> None:
    stream = world.inference.Generate(ask(stopping=inference_pb2.Stopping(stop=["##"])))
    started = await world.started()
    started.emit(ids_of("one #"))
    started.emit(ids_of("# two"))
    assert await started.finish_index == len(ids_of("one #"))
    started.emit(ids_of("three"))
    started.finish(FinishReason.STOP)
    responses = [response async for response in stream]
    assert "".join(response.text for response in responses) == "one "
    assert responses[-1].done.usage.completion_tokens == len(ids_of("one #")) + 1
    assert not started.cancelled.is_set()


async def test_a_client_that_leaves_mid_stream_is_cancelled_at_the_scheduler(world: GatewayWorld) -> None:
    stream = world.inference.Generate(ask())
    started = await world.started()
    started.emit(ids_of("abc"))
    assert (await stream.read()).text
    stream.cancel()
    await asyncio.wait_for(started.cancelled.wait(), 2)
    await world.nothing_held()
    record = await record_of(world, started)
    assert (record.outcome, record.usage.completion_tokens) == ("cancelled", len(ids_of("abc")))


async def test_a_client_that_leaves_before_the_first_token_is_cancelled_too(world: GatewayWorld) -> None:
    stream = world.inference.Generate(ask())
    started = await world.started()
    stream.cancel()
    await asyncio.wait_for(started.cancelled.wait(), 2)


async def test_a_client_that_leaves_while_the_start_is_on_its_way_is_not_forgotten(model: Path) -> None:
    async with gateway_world(model, faults={"gateway.start": 0.2}) as world:
        stream = world.inference.Generate(ask())
        await stream.initial_metadata()
        stream.cancel()
        started = await world.started()
        await asyncio.wait_for(started.cancelled.wait(), 2)


async def test_a_deadline_is_an_error_and_never_a_short_answer(world: GatewayWorld) -> None:
    stream = world.inference.Generate(ask(), timeout=0.3)
    started = await world.started()
    assert 0 < started.start.remaining_seconds <= 0.3
    started.emit(ids_of("abc"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in stream:
            pass
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await asyncio.wait_for(started.cancelled.wait(), 2)
    await world.nothing_held()
    assert (await record_of(world, started)).outcome == "DeadlinePassed"


async def test_a_traceparent_is_adopted_and_every_span_has_its_parent(world: GatewayWorld) -> None:
    world.scheduler.script = answering("x")
    trace, parent = "ab" * 16, "cd" * 8
    metadata = (("traceparent", f"00-{trace}-{parent}-01"), ("x-request-id", "mine"))
    stream = world.inference.Generate(ask(), metadata=metadata)
    done = [response async for response in stream][-1].done
    sent = dict(await stream.initial_metadata())
    assert (sent["x-request-id"], sent["x-client-request-id"]) == (done.request_id, "mine")
    assert (sent["x-trace-id"], done.trace_id) == (trace, trace)
    await world.nothing_held()
    spans = {span.name: span for span in world.spans.get_finished_spans() if span.context.trace_id == int(trace, 16)}
    root = spans["gateway.request"]
    assert root.parent.span_id == int(parent, 16)
    assert {"gateway.tokenize", "gateway.stream"} == spans.keys() - {"gateway.request"}
    assert all(spans[name].parent.span_id == root.context.span_id for name in spans if name != "gateway.request")
    start = (await world.started()).start
    assert start.traceparent == f"00-{trace}-{root.context.span_id:016x}-01"
    assert root.attributes["gen_ai.usage.output_tokens"] == 2
    assert root.attributes["gen_ai.response.finish_reasons"] == ("stop",)


@pytest.mark.parametrize("given", ["", "00-xyz", f"00-{'0' * 32}-{'0' * 16}-01"])
async def test_a_traceparent_that_is_none_is_ignored(world: GatewayWorld, given: str) -> None:
    world.scheduler.script = answering("x")
    stream = world.inference.Generate(ask(), metadata=(("traceparent", given),))
    done = [response async for response in stream][-1].done
    assert int(done.trace_id, 16) != 0


async def test_spans_of_many_streams_half_of_them_cancelled_end_exactly_once(world: GatewayWorld) -> None:
    async def eight() -> None:
        streams = [world.inference.Generate(ask()) for _ in range(8)]
        # Which start belongs to which stream is not told, so each round does the same to all of either.
        started = [await world.started() for _ in streams]
        for one in started:
            one.emit(ids_of("a"))
        await asyncio.gather(*(stream.read() for stream in streams))
        for stream in streams[::2]:
            stream.cancel()
        for one in started:
            one.finish()
        await asyncio.gather(*(rest_of(stream) for stream in streams[1::2]))

    world.spans.clear()
    for _ in range(5):
        await eight()
    await world.nothing_held()
    spans = world.spans.get_finished_spans()
    ids = [span.context.span_id for span in spans]
    assert len(ids) == len(set(ids))
    assert sum(span.name == "gateway.request" for span in spans) == 40


BAD = {
    "temperature": ask(sampling=inference_pb2.Sampling(temperature=math.nan)),
    "top_p": ask(sampling=inference_pb2.Sampling(top_p=math.inf)),
    "text": ask(""),
    "messages": inference_pb2.GenerateRequest(chat=inference_pb2.Chat()),
    "token_ids": inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=[10**9])),
    "prompt": inference_pb2.GenerateRequest(),
    "max_tokens": ask(stopping=inference_pb2.Stopping(max_tokens=0)),
    "stop": ask(stopping=inference_pb2.Stopping(stop=["a", ""])),
    "stop_token_ids": ask(stopping=inference_pb2.Stopping(stop_token_ids=[10**9])),
}


@pytest.mark.parametrize("field", sorted(BAD))
async def test_bad_input_is_refused_by_name_and_the_next_request_works(world: GatewayWorld, field: str) -> None:
    world.scheduler.script = answering("x")
    error = await refusal_of(world, BAD[field])
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert dict(error.trailing_metadata())["x-field"] == field
    assert len(error.details()) < 200
    assert (await answer_to(world, ask()))[-1].done.finish_reason == inference_pb2.FINISH_REASON_STOP


async def test_an_unknown_model_is_not_found(world: GatewayWorld) -> None:
    assert (await refusal_of(world, ask(model="nope"))).code() == grpc.StatusCode.NOT_FOUND


async def test_text_that_is_not_utf8_is_refused(world: GatewayWorld) -> None:
    raw = ask("Hello").SerializeToString().replace(b"Hello", b"He\xff\xfeo")
    call = world.channel.unary_stream("/diptych.v1.Inference/Generate")(raw)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_message_over_the_limit_is_refused(world: GatewayWorld) -> None:
    assert (await refusal_of(world, ask("x" * (5 << 20)))).code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_the_prompt_may_have_one_token_less_than_the_context(world: GatewayWorld) -> None:
    world.scheduler.script = answering("", tail=(END,))
    fits = inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=[65] * (CONTEXT - 1)))
    await answer_to(world, fits)
    assert (await world.started()).start.stopping.max_tokens == 1
    error = await refusal_of(world, inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=[65] * CONTEXT)))
    assert dict(error.trailing_metadata())["x-reason"] == "ContextTooLong"
    assert str(CONTEXT) in error.details()


async def test_an_error_of_the_scheduler_reaches_the_client_as_it_is(world: GatewayWorld) -> None:
    world.scheduler.script = lambda started: started.fail(Overloaded("the queue is full", retry_after=2.5))
    error = await refusal_of(world, ask())
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    trailers = dict(error.trailing_metadata())
    assert (trailers["x-reason"], trailers["x-retry-after"]) == ("Overloaded", "2.5")


async def test_an_error_in_the_middle_is_a_status_and_not_an_end(world: GatewayWorld) -> None:
    def script(started: Started) -> None:
        started.emit(ids_of("abc"))
        started.fail(EngineFault("the engine broke"))

    world.scheduler.script = script
    assert (await refusal_of(world, ask())).code() == grpc.StatusCode.INTERNAL


async def test_tokens_beyond_what_was_asked_for_end_the_request(world: GatewayWorld) -> None:
    stream = world.inference.Generate(ask(stopping=inference_pb2.Stopping(max_tokens=2)))
    started = await world.started()
    started.emit(ids_of("abcdef"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in stream:
            pass
    assert caught.value.code() == grpc.StatusCode.INTERNAL
    await asyncio.wait_for(started.cancelled.wait(), 2)


async def test_a_lost_scheduler_is_replaced_and_each_token_comes_once(model: Path) -> None:
    async with gateway_world(model, schedulers=2) as world:
        first, second = world.schedulers
        await world.connected()
        stream = world.inference.Generate(ask(sampling=inference_pb2.Sampling(seed=5)))
        started = await world.started()
        lost = first if first.holds(started) else second
        started.emit(ids_of("abc"))
        assert (await stream.read()).text == "abc"
        lost.end_sessions()
        again = await world.started()
        assert (again.key.attempt, list(again.start.emitted)) == (1, ids_of("abc"))
        assert again.start.sampling.seed == 5
        assert again.start.prompt == started.start.prompt
        again.emit(ids_of("def"))
        again.finish(FinishReason.LENGTH)
        responses = await rest_of(stream)
        assert "".join(response.text for response in responses) == "def"
        done = responses[-1].done
        assert done.usage.completion_tokens == len(ids_of("abc")) + len(ids_of("def"))
        assert "lost.scheduler" in [segment.name for segment in done.ledger]
        record = await record_of(world, again)
        assert [decision.attempt for decision in record.decisions] == [0, 1]


async def test_a_leaving_scheduler_is_passed_over_and_counts_as_no_loss(model: Path) -> None:
    async with gateway_world(model, schedulers=2, max_attempts=1) as world:
        await world.connected()
        stream = world.inference.Generate(ask())
        started = await world.started()
        started.emit(ids_of("a"))
        started.fail(Draining("leaving"))
        again = await world.started()
        assert again.session is not started.session
        assert list(again.start.emitted) == ids_of("a")
        again.emit(ids_of("x"))
        again.finish()
        assert [response async for response in stream][-1].done.usage.completion_tokens == 2


async def test_the_only_scheduler_lost_is_waited_for_and_goes_on(world: GatewayWorld) -> None:
    stream = world.inference.Generate(ask())
    started = await world.started()
    started.emit(ids_of("abc"))
    assert (await stream.read()).text == "abc"
    world.scheduler.end_sessions()
    again = await world.started()
    assert (again.key.attempt, list(again.start.emitted)) == (1, ids_of("abc"))
    again.emit(ids_of("def"))
    again.finish(FinishReason.LENGTH)
    assert "".join(response.text for response in await rest_of(stream)) == "def"


async def test_the_only_scheduler_lost_for_too_long_is_an_error_that_says_so(model: Path) -> None:
    async with gateway_world(model, scheduler_wait=0) as world:
        stream = world.inference.Generate(ask())
        started = await world.started()
        started.emit(ids_of("abc"))
        assert (await stream.read()).text == "abc"
        world.scheduler.end_sessions()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert dict(caught.value.trailing_metadata())["x-reason"] == "WorkerLost"


async def test_a_scheduler_that_leaves_alone_is_not_asked_again(model: Path) -> None:
    async with gateway_world(model, scheduler_wait=0.1) as world:
        stream = world.inference.Generate(ask())
        (await world.started()).fail(Draining("leaving"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        assert dict(caught.value.trailing_metadata())["x-reason"] == "WorkerLost"
        assert world.scheduler.started.empty()


async def test_a_request_waits_for_the_first_scheduler_to_come(model: Path) -> None:
    address = f"127.0.0.1:{(port := free_port())}"
    async with gateway_world(model, schedulers=0, wired=(address,)) as world:
        await world.listening()
        stream = world.inference.Generate(ask())
        asked = asyncio.create_task(stream.read())
        while not await world.held():
            await asyncio.sleep(0)
        async with scripted_scheduler(port=port) as scheduler:
            scheduler.script = answering("late")
            assert (await asked).text


async def test_waiting_for_a_scheduler_ends_at_the_requests_deadline(model: Path) -> None:
    async with gateway_world(model, schedulers=0, scheduler_wait=60) as world:
        await world.listening()
        error = await refusal_of(world, ask(), timeout=0.3)
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED


async def test_no_scheduler_is_unavailable_with_a_time_to_come_back(model: Path) -> None:
    async with gateway_world(model, schedulers=0, scheduler_wait=0.1) as world:
        error = await refusal_of(world, ask(), wait_for_ready=True)
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        trailers = dict(error.trailing_metadata())
        assert (trailers["x-reason"], trailers["x-retry-after"]) == ("NoWorkers", "1")


async def test_more_requests_than_allowed_are_refused(model: Path) -> None:
    async with gateway_world(model, max_requests=1) as world:
        stream = world.inference.Generate(ask())
        await world.started()
        assert (await refusal_of(world, ask())).code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        stream.cancel()
        await world.nothing_held()


async def test_a_drain_lets_streams_finish_and_takes_nothing_new(model: Path) -> None:
    async with gateway_world(model) as world:
        stream = world.inference.Generate(ask())
        started = await world.started()
        world.process.stopping.set()
        assert (await refusal_of(world, ask())).code() == grpc.StatusCode.UNAVAILABLE
        started.emit(ids_of("x"))
        started.finish()
        assert [response async for response in stream][-1].done.usage.completion_tokens == 1


async def test_the_models_and_finished_requests_can_be_looked_up(world: GatewayWorld) -> None:
    world.scheduler.script = answering("x")
    models = (await world.inference.ListModels(inference_pb2.ListModelsRequest())).models
    assert [(one.context, len(one.digest)) for one in models] == [(CONTEXT, 64)]
    done = (await answer_to(world, ask(model=models[0].name)))[-1].done
    record = await world.inference.GetRequest(inference_pb2.GetRequestRequest(request_id=done.request_id))
    assert (record.outcome, record.trace_id, record.usage) == ("stop", done.trace_id, done.usage)
    assert record.ledger == done.ledger
    assert [(one.decode, one.why) for one in record.decisions] == [("decode-0", "the only one")]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.inference.GetRequest(inference_pb2.GetRequestRequest(request_id="unknown"))
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


async def record_of(world: GatewayWorld, started: Started) -> inference_pb2.RequestRecord:
    return await world.inference.GetRequest(inference_pb2.GetRequestRequest(request_id=started.key.request_id))


async def rest_of(
    stream: "grpc.aio.UnaryStreamCall[inference_pb2.GenerateRequest, inference_pb2.GenerateResponse]",
) -> list[inference_pb2.GenerateResponse]:
    """What is left of a stream of which some was read."""
    responses = []
    while isinstance(response := await stream.read(), inference_pb2.GenerateResponse):
        responses.append(response)
    return responses
