"""Several answers to one prompt, and log probabilities, through a real gateway and both of its APIs."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import openai
import pytest
import pytest_asyncio

from services.core.draw import choice_seed
from services.core.errors import Overloaded
from services.core.request import FinishReason
from services.pb import inference_pb2
from tests.support.gateway_world import END, GatewayWorld, answering, gateway_world, ids_of, tiny_prepared
from tests.support.scripted_scheduler import Started

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "Grüße 🙂!"
HELLO = [{"role": "user", "content": "Hello"}]
Stream = grpc.aio.UnaryStreamCall[inference_pb2.GenerateRequest, inference_pb2.GenerateResponse]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_prepared(tmp_path_factory.mktemp("model"), 128)


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


@pytest_asyncio.fixture(loop_scope="module")
async def client(world: GatewayWorld) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{world.http}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(n: int, **fields: object) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(text="Hello", n=n, **fields)


async def begun(world: GatewayWorld, n: int) -> list[Started]:
    """The requests for all answers, once the first of them has had its prompt computed."""
    first = await world.started()
    first.emit(ids_of("a"))
    return [first, *[await world.started() for _ in range(n - 1)]]


async def rest_of(stream: Stream) -> list[inference_pb2.GenerateResponse]:
    """What is still to be read."""
    responses = []
    while (response := await stream.read()) is not grpc.aio.EOF:
        responses.append(response)
    return responses


async def refused(stream: AsyncIterator[inference_pb2.GenerateResponse]) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in stream:
            pass
    return caught.value.code()


async def test_the_others_start_when_the_first_has_had_the_prompt_computed(world: GatewayWorld) -> None:
    stream = world.inference.Generate(ask(3, sampling=inference_pb2.Sampling(seed=9)))
    first = await world.started()
    await world.held()
    assert world.scheduler.started.empty()
    first.emit(ids_of("a"))
    others = [await world.started() for _ in range(2)]
    name = first.key.request_id
    assert [one.key.request_id for one in others] == [f"{name}.1", f"{name}.2"]
    assert [one.start.sampling.seed for one in (first, *others)] == [9, choice_seed(9, 1), choice_seed(9, 2)]
    assert all(one.start.prompt == first.start.prompt for one in others)
    stream.cancel()


async def test_each_answer_has_its_index_and_its_end_and_the_last_message_tells_of_all(world: GatewayWorld) -> None:
    stream = world.inference.Generate(ask(3, stopping=inference_pb2.Stopping(max_tokens=9)))
    first, second, third = await begun(world, 3)
    second.emit(ids_of("bc"))
    third.emit([*ids_of("d"), END])
    third.finish()
    first.emit(ids_of("x"))
    first.finish(FinishReason.LENGTH)
    responses = []
    while sum(bool(one.finish_reason) for one in responses) < 2:
        responses.append(await stream.read())
    second.finish(FinishReason.LENGTH)
    responses += await rest_of(stream)
    texts, reasons = defaultdict(str), {}
    for one in responses:
        assert one.index not in reasons, "nothing about an answer follows its end"
        texts[one.index] += one.text
        if one.finish_reason:
            reasons[one.index] = inference_pb2.FinishReason.Name(one.finish_reason).removeprefix("FINISH_REASON_")
    assert texts == {0: "ax", 1: "bc", 2: "d"}
    assert reasons == {0: "LENGTH", 1: "LENGTH", 2: "STOP"}
    assert [one.HasField("done") for one in responses] == [False] * (len(responses) - 1) + [True]
    done = responses[-1].done
    assert (responses[-1].index, done.finish_reason) == (1, inference_pb2.FINISH_REASON_LENGTH)
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (len(ids_of("Hello")), 2 + 2 + 2)
    assert done.usage.cached_tokens == 3
    assert [segment.name for segment in done.ledger][:2] == ["gateway.tokenize", "gateway.shared_prompt"]
    total = sum(segment.seconds for segment in done.ledger) + done.remainder_seconds
    assert total == pytest.approx(done.total_seconds, abs=1e-9)
    record = await world.inference.GetRequest(inference_pb2.GetRequestRequest(request_id=done.request_id))
    assert sorted(decision.index for decision in record.decisions) == [0, 1, 2]
    assert record.usage == done.usage


async def test_one_answer_is_the_first_of_several(world: GatewayWorld) -> None:
    world.scheduler.script = answering("x")
    for n in (1, 2):
        async for _ in world.inference.Generate(ask(n, sampling=inference_pb2.Sampling(seed=7))):
            pass
    alone, first = await world.started(), await world.started()
    assert first.start.sampling == alone.start.sampling
    assert first.start.stopping == alone.start.stopping


@pytest.mark.parametrize("which", [0, 2])
async def test_if_one_fails_all_do(world: GatewayWorld, which: int) -> None:
    stream = world.inference.Generate(ask(3))
    started = await begun(world, 3)
    started[which].fail(Overloaded("the queue is full"))
    assert await refused(stream) == grpc.StatusCode.RESOURCE_EXHAUSTED
    for other in set(range(3)) - {which}:
        await asyncio.wait_for(started[other].cancelled.wait(), 2)


async def test_if_the_first_fails_before_its_prompt_the_others_never_start(world: GatewayWorld) -> None:
    world.scheduler.script = lambda started: started.fail(Overloaded("the queue is full"))
    assert await refused(world.inference.Generate(ask(3))) == grpc.StatusCode.RESOURCE_EXHAUSTED
    await world.started()
    await world.nothing_held()
    assert world.scheduler.started.empty()


@pytest.mark.parametrize("ending", ["cancelled", "deadline"])
async def test_a_client_that_leaves_and_a_deadline_end_all(world: GatewayWorld, ending: str) -> None:
    stream = world.inference.Generate(ask(3), timeout=0.5 if ending == "deadline" else None)
    started = await begun(world, 3)
    if ending == "cancelled":
        stream.cancel()
    for one in started:
        await asyncio.wait_for(one.cancelled.wait(), 2)
    await world.nothing_held()
    request = inference_pb2.GetRequestRequest(request_id=started[0].key.request_id)
    record = await world.inference.GetRequest(request)
    assert record.outcome == ("cancelled" if ending == "cancelled" else "DeadlinePassed")


async def test_a_stop_string_ends_the_answer_that_has_it_and_no_other(world: GatewayWorld) -> None:
    stream = world.inference.Generate(ask(2, stopping=inference_pb2.Stopping(stop=["##"])))
    first, second = await begun(world, 2)
    second.emit(ids_of("b## more"))
    assert await second.finish_index == len(ids_of("b##")) - 1
    second.finish()
    first.emit([*ids_of("#b"), END])
    first.finish()
    texts: defaultdict[int, str] = defaultdict(str)
    async for one in stream:
        texts[one.index] += one.text
    assert texts == {0: "a#b", 1: "b"}
    assert not first.finish_index.done()


async def test_a_lost_scheduler_costs_none_of_several_answers_a_token(model: Path) -> None:
    async with gateway_world(model, schedulers=2) as world:
        await world.connected()
        stream = world.inference.Generate(ask(2))
        started = await begun(world, 2)
        started[1].emit(ids_of("b"))
        texts: defaultdict[int, str] = defaultdict(str)
        while len(texts) < 2:
            one = await stream.read()
            texts[one.index] += one.text
        lost = next(scheduler for scheduler in world.schedulers if scheduler.holds(started[0]))
        held = [one for one in started if lost.holds(one)]
        lost.end_sessions()
        again = [await world.started() for _ in held]
        assert {one.key.request_id for one in again} == {one.key.request_id for one in held}
        for one in [*again, *[kept for kept in started if kept not in held]]:
            one.emit([*ids_of("z"), END])
            one.finish()
        for one in await rest_of(stream):
            texts[one.index] += one.text
        assert texts == {0: "az", 1: "bz"}


async def test_log_probabilities_come_beside_the_ids(world: GatewayWorld) -> None:
    world.scheduler.script = answering(TEXT)
    request = ask(1, sampling=inference_pb2.Sampling(logprobs=2))
    responses = [response async for response in world.inference.Generate(request)]
    ids = [token for response in responses for token in response.token_ids]
    reported = [one for response in responses for one in response.logprobs]
    assert all(len(response.logprobs) == len(response.token_ids) for response in responses)
    assert [one.drawn.token_id for one in reported] == ids == [*ids_of(TEXT), END]
    assert [one.drawn.logprob for one in reported] == [-float(token) for token in ids]
    assert [[top.token_id for top in one.top] for one in reported] == [[token, token + 1] for token in ids]
    assert b"".join(one.drawn.bytes for one in reported).decode() == TEXT
    assert (await world.started()).start.sampling.logprobs == 2


async def test_nothing_is_reported_that_is_not_asked_for(world: GatewayWorld) -> None:
    world.scheduler.script = answering(TEXT)
    responses = [response async for response in world.inference.Generate(ask(1))]
    assert not any(response.logprobs for response in responses)
    assert not (await world.started()).start.sampling.HasField("logprobs")


async def test_the_official_client_gets_several_choices_whole(world: GatewayWorld, client: openai.AsyncOpenAI) -> None:
    world.scheduler.script = answering(TEXT)
    answer = await client.chat.completions.create(model="tiny", messages=HELLO, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert {choice.message.content for choice in answer.choices} == {TEXT}
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}
    assert answer.usage.completion_tokens == 3 * (len(ids_of(TEXT)) + 1)
    alone = await client.chat.completions.create(model="tiny", messages=HELLO)
    assert alone.usage.prompt_tokens == answer.usage.prompt_tokens


async def test_the_official_client_streams_several_choices(world: GatewayWorld, client: openai.AsyncOpenAI) -> None:
    world.scheduler.script = answering(TEXT)
    options = {"include_usage": True}
    stream = await client.chat.completions.create(
        model="tiny", messages=HELLO, n=2, stream=True, stream_options=options, logprobs=True
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].usage.completion_tokens == 2 * (len(ids_of(TEXT)) + 1) and not chunks[-1].choices
    assert "diptych" in chunks[-1].model_extra
    for index in (0, 1):
        choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert choices[0].delta.role == "assistant"
        assert "".join(choice.delta.content or "" for choice in choices) == TEXT
        assert [choice.finish_reason for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
        reported = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
        assert bytes(byte for entry in reported for byte in entry.bytes).decode() == TEXT


async def test_the_official_client_gets_the_log_probabilities_of_a_chat(
    world: GatewayWorld, client: openai.AsyncOpenAI
) -> None:
    world.scheduler.script = answering(TEXT)
    answer = await client.chat.completions.create(
        model="tiny", messages=HELLO, logprobs=True, top_logprobs=3, logit_bias={"70": -100}, presence_penalty=0.5
    )
    content = answer.choices[0].logprobs.content
    assert bytes(byte for entry in content for byte in entry.bytes).decode() == TEXT
    assert [entry.logprob for entry in content] == [-float(token) for token in ids_of(TEXT)]
    assert all(len(entry.top_logprobs) == 3 and entry.top_logprobs[0].token == entry.token for entry in content)
    drawn = (await world.started()).start.sampling
    assert [(bias.token, bias.bias) for bias in drawn.logit_bias] == [(70, -100.0)]
    assert (drawn.presence_penalty, drawn.logprobs) == (0.5, 3)
    plain = await client.chat.completions.create(model="tiny", messages=HELLO)
    assert plain.choices[0].logprobs is None


@pytest.mark.parametrize("is_stream", [False, True])
async def test_the_official_client_gets_the_log_probabilities_of_a_completion(
    world: GatewayWorld, client: openai.AsyncOpenAI, is_stream: bool
) -> None:
    world.scheduler.script = answering("one ## two")
    asked = {"model": "tiny", "prompt": "Hello", "logprobs": 2, "stop": ["##"], "max_tokens": 30}
    if is_stream:
        chunks = [chunk async for chunk in await client.completions.create(**asked, stream=True)]
        choices = [choice for chunk in chunks for choice in chunk.choices]
    else:
        choices = (await client.completions.create(**asked)).choices
    assert "".join(choice.text for choice in choices) == "one "
    reported = [choice.logprobs for choice in choices if choice.logprobs]
    tokens = [token for one in reported for token in one.tokens]
    assert "".join(tokens) == "one ", "what is cut off is not reported"
    offsets = [offset for one in reported for offset in one.text_offset]
    assert offsets == [len("".join(tokens[:at])) for at in range(len(tokens))]
    expected = [-float(token) for token in ids_of("one ")]
    assert [value for one in reported for value in one.token_logprobs] == expected
    assert all(token in top for one in reported for token, top in zip(one.tokens, one.top_logprobs, strict=True))
