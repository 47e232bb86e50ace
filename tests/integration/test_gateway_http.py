"""The OpenAI API of a real gateway in front of a scripted scheduler: the official client, and bare HTTP."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import openai
import pytest
import pytest_asyncio

from services.core.errors import EngineFault, Overloaded
from services.core.request import FinishReason
from tests.support.gateway_world import GatewayWorld, answering, gateway_world, ids_of, tiny_prepared
from tests.support.scripted_scheduler import Started

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "Grüße 🙂!"
HELLO = [{"role": "user", "content": "Hello"}]
CHAT = "/v1/chat/completions"


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


@pytest_asyncio.fixture(loop_scope="module")
async def http(world: GatewayWorld) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=world.http, timeout=10) as client:
        yield client


async def events_of(http: httpx.AsyncClient, body: dict[str, object], path: str = CHAT) -> list[str]:
    """The data of every event of a stream."""
    response = await http.post(path, json={**body, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = response.text.split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") for line in lines)
    return [line.removeprefix("data: ") for line in lines]


async def test_the_official_client_streams_a_chat(world: GatewayWorld, client: openai.AsyncOpenAI) -> None:
    world.scheduler.script = answering(TEXT)
    stream = await client.chat.completions.create(model="tiny", messages=HELLO, stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert all(chunk.usage is None for chunk in chunks)
    assert chunks[-1].model_extra["diptych"]["ledger"][0]["segment"] == "gateway.tokenize"


async def test_include_usage_adds_exactly_one_chunk_that_equals_the_unstreamed_counts(
    world: GatewayWorld, client: openai.AsyncOpenAI
) -> None:
    world.scheduler.script = answering(TEXT)
    whole = await client.chat.completions.create(model="tiny", messages=HELLO)
    options = {"include_usage": True}
    stream = await client.chat.completions.create(model="tiny", messages=HELLO, stream=True, stream_options=options)
    chunks = [chunk async for chunk in stream]
    assert [len(chunk.choices) for chunk in chunks] == [1] * (len(chunks) - 1) + [0]
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].usage == whole.usage
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens


async def test_the_official_client_gets_a_whole_chat(world: GatewayWorld, client: openai.AsyncOpenAI) -> None:
    world.scheduler.script = answering(TEXT)
    answer = await client.chat.completions.create(
        model="tiny", messages=HELLO, temperature=0, seed=3, max_completion_tokens=50, extra_body={"top_k": 5}
    )
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (TEXT, "stop")
    extra = answer.model_extra["diptych"]
    total = sum(one["seconds"] for one in extra["ledger"]) + extra["remainder_seconds"]
    assert total == pytest.approx(extra["total_seconds"], abs=1e-9)
    start = (await world.started()).start
    drawn = start.sampling
    assert (drawn.temperature, drawn.seed, drawn.top_k, start.stopping.max_tokens) == (0.0, 3, 5, 50)


@pytest.mark.parametrize("prompt", ["Hello", ["Hello"], ids_of("Hello"), [ids_of("Hello")]])
async def test_completions_take_text_and_ids(world: GatewayWorld, client: openai.AsyncOpenAI, prompt: object) -> None:
    world.scheduler.script = answering(TEXT)
    answer = await client.completions.create(model="tiny", prompt=prompt, stop=["!"])
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (TEXT.removesuffix("!"), "stop")
    start = (await world.started()).start
    assert (list(start.prompt), start.stopping.max_tokens) == (ids_of("Hello"), 16)


async def test_a_completion_streams_and_ends_by_length(world: GatewayWorld, http: httpx.AsyncClient) -> None:
    def script(started: Started) -> None:
        started.emit(ids_of("ab"))
        started.finish(FinishReason.LENGTH)

    world.scheduler.script = script
    events = await events_of(http, {"prompt": "Hello"}, "/v1/completions")
    assert events.pop() == "[DONE]"
    choices = [json.loads(event)["choices"][0] for event in events]
    assert "".join(choice["text"] for choice in choices) == "ab"
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]


async def test_an_error_before_the_first_event_has_its_status(world: GatewayWorld, client: openai.AsyncOpenAI) -> None:
    world.scheduler.script = lambda started: started.fail(Overloaded("the queue is full", retry_after=1.2))
    with pytest.raises(openai.RateLimitError) as caught:
        await client.chat.completions.create(model="tiny", messages=HELLO, stream=True)
    assert caught.value.response.headers["retry-after"] == "2"


async def test_an_error_after_the_start_is_an_event_and_no_end(world: GatewayWorld, http: httpx.AsyncClient) -> None:
    def script(started: Started) -> None:
        started.emit(ids_of("ab"))
        asyncio.get_running_loop().call_later(0.05, lambda: started.fail(EngineFault("the engine broke")))

    world.scheduler.script = script
    events = await events_of(http, {"messages": HELLO})
    assert json.loads(events[-1])["error"]["code"] == "EngineFault"
    assert "[DONE]" not in events
    assert all(choice["finish_reason"] is None for event in events[:-1] for choice in json.loads(event)["choices"])


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_client_that_leaves_before_the_first_token_is_cancelled(world: GatewayWorld, is_stream: bool) -> None:
    async with httpx.AsyncClient(base_url=world.http) as http:
        asking = asyncio.create_task(http.post(CHAT, json={"messages": HELLO, "stream": is_stream}))
        started = await world.started()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    await asyncio.wait_for(started.cancelled.wait(), 2)


async def test_a_client_that_leaves_mid_stream_is_cancelled(world: GatewayWorld, client: openai.AsyncOpenAI) -> None:
    creating = asyncio.create_task(client.chat.completions.create(model="tiny", messages=HELLO, stream=True))
    started = await world.started()
    started.emit(ids_of("abc"))
    stream = await creating
    assert (await anext(aiter(stream))).choices[0].delta.role == "assistant"
    await stream.close()
    await asyncio.wait_for(started.cancelled.wait(), 2)


BAD: dict[str, tuple[str, dict[str, object]]] = {
    "unknown model": ("model", {"model": "nope"}),
    "no messages": ("messages", {"messages": []}),
    "empty content": ("temperature", {"temperature": "warm"}),
    "zero tokens": ("max_tokens", {"max_tokens": 0}),
    "negative tokens": ("max_completion_tokens", {"max_completion_tokens": -1}),
    "too many tokens": ("max_tokens", {"max_tokens": 2**40}),
    "many answers": ("n", {"n": 10**6}),
    "a bias beyond the vocabulary": ("logit_bias", {"logit_bias": {"999999": 1}}),
    "top without log probabilities": ("top_logprobs", {"top_logprobs": 3}),
    "a penalty out of range": ("presence_penalty", {"presence_penalty": 3}),
    "an empty stop": ("stop", {"stop": ""}),
    "many stops": ("stop", {"stop": ["x"] * 100_000}),
    "a great seed": ("seed", {"seed": 2**64}),
    "tools": ("tools", {"tools": [{"type": "function"}]}),
    "a surrogate": ("messages", {"messages": [{"role": "user", "content": "hi \ud800 there"}]}),
    "a long prompt": ("messages", {"messages": [{"role": "user", "content": "x" * 2000}]}),
}


@pytest.mark.parametrize("what", sorted(BAD))
async def test_bad_input_is_refused_by_name_and_the_next_request_works(
    world: GatewayWorld, http: httpx.AsyncClient, what: str
) -> None:
    field, change = BAD[what]
    response = await http.post(CHAT, content=json.dumps({"messages": HELLO, **change}))
    assert response.status_code == (404 if field == "model" else 400)
    error = response.json()["error"]
    assert error["param"] == field
    assert error.keys() == {"message", "type", "param", "code"}
    assert len(response.content) < 400
    assert response.headers["x-request-id"] and response.headers["x-trace-id"]
    world.scheduler.script = answering("x")
    assert (await http.post(CHAT, json={"messages": HELLO})).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b'{"messages": "\xff\xfe"}',
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
        b"[" * 50_000,
    ],
)
async def test_a_body_that_is_not_json_is_refused(http: httpx.AsyncClient, body: bytes) -> None:
    response = await http.post(CHAT, content=body)
    assert response.status_code == 400
    assert len(response.content) < 400


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_over_the_limit_is_413(http: httpx.AsyncClient, is_chunked: bool) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"x" * (1 << 20)

    response = await http.post(CHAT, content=chunks() if is_chunked else b"x" * (5 << 20))
    assert response.status_code == 413
    assert len(response.content) < 400
    assert (await http.get("/health")).status_code == 200


async def test_a_traceparent_is_adopted_and_the_clients_id_is_echoed(
    world: GatewayWorld, http: httpx.AsyncClient
) -> None:
    world.scheduler.script = answering("x")
    trace = "ef" * 16
    headers = {"traceparent": f"00-{trace}-{'12' * 8}-01", "x-request-id": "mine"}
    response = await http.post(CHAT, json={"messages": HELLO}, headers=headers)
    assert response.headers["x-trace-id"] == trace
    assert response.headers["x-client-request-id"] == "mine"
    assert response.headers["x-request-id"] == response.json()["diptych"]["request_id"] != "mine"


async def test_models_are_listed_and_looked_up(client: openai.AsyncOpenAI) -> None:
    models = [model async for model in client.models.list()]
    assert [(model.id, model.owned_by) for model in models] == [("tiny", "diptych")]
    assert (await client.models.retrieve("tiny")).id == "tiny"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("org/other")


async def test_operators_routes_answer(world: GatewayWorld, http: httpx.AsyncClient) -> None:
    world.scheduler.script = answering("x")
    await http.post(CHAT, json={"messages": HELLO})
    assert [(await http.get(path)).status_code for path in ("/health", "/ready", "/metrics")] == [200, 200, 200]
    assert 'diptych_requests_total{outcome="stop"}' in (await http.get("/metrics")).text
    missing = await http.get("/v2/nothing")
    assert (missing.status_code, "error" in missing.json()) == (404, True)
    assert (await http.get(CHAT)).status_code == 405


async def test_without_a_scheduler_it_lives_but_is_not_ready(model: Path) -> None:
    async with (
        gateway_world(model, schedulers=0, scheduler_wait=0.1) as world,
        httpx.AsyncClient(base_url=world.http) as http,
    ):
        await world.listening()
        assert [(await http.get(path)).status_code for path in ("/health", "/ready")] == [200, 503]
        response = await http.post(CHAT, json={"messages": HELLO})
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")


async def test_a_drain_lets_a_stream_finish_and_takes_nothing_new(model: Path) -> None:
    async with gateway_world(model) as world, httpx.AsyncClient(base_url=world.http) as http:
        asking = asyncio.create_task(http.post(CHAT, json={"messages": HELLO, "stream": True}))
        started = await world.started()
        world.process.stopping.set()
        assert (await http.post(CHAT, json={"messages": HELLO})).status_code == 503
        assert (await http.get("/ready")).status_code == 503
        started.emit(ids_of("x"))
        started.finish()
        assert (await asking).text.endswith("data: [DONE]\n\n")


async def test_a_head_without_end_is_refused_and_costs_only_its_connection(
    world: GatewayWorld, http: httpx.AsyncClient
) -> None:
    host, _, port = world.http.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nx-a: ".encode())
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                writer.write(b"a" * 4096)
                await writer.drain()
        with contextlib.suppress(ConnectionError):
            answer = await asyncio.wait_for(reader.read(), 5)
            assert answer.startswith(b"HTTP/1.1 4") or not answer
    finally:
        writer.close()
    assert (await http.get("/health")).status_code == 200
