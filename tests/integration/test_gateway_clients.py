"""Whose a request is, its class, its priority and its time: from the client's call to the scheduler's Start."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import httpx
import pytest
import pytest_asyncio

from services.gateway.clients import digest
from services.pb import inference_pb2
from tests.support.gateway_world import GatewayWorld, answering, gateway_world, tiny_prepared

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello"}]}
CALL = inference_pb2.GenerateRequest(text="Hello")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayWorld]:
    model: Path = tiny_prepared(tmp_path_factory.mktemp("model"), 128)
    made = gateway_world(
        model,
        service_tiers={"flex": "batch"},
        key_classes={digest("gold-key"): "gold"},
        max_requests_per_key=1,
    )
    async with made as world:
        await world.connected()
        yield world


@pytest_asyncio.fixture(loop_scope="module")
async def http(world: GatewayWorld) -> AsyncIterator[httpx.AsyncClient]:
    world.scheduler.reset()
    async with httpx.AsyncClient(base_url=world.http, timeout=10) as client:
        yield client
    await world.nothing_held()


@pytest.mark.parametrize(
    ("key", "fields", "expected"),
    [
        ("", {}, ("", "", 0)),
        ("", {"user": "ann", "service_tier": "flex", "priority": 3}, (digest("ann"), "batch", 3)),
        ("key", {"user": "ann"}, (digest("key"), "", 0)),
        ("gold-key", {"service_tier": "flex"}, (digest("gold-key"), "gold", 0)),
    ],
)
@pytest.mark.parametrize("api", ["http", "grpc"])
async def test_the_scheduler_hears_whose_a_request_is_and_how_it_goes(
    world: GatewayWorld, http: httpx.AsyncClient, api: str, key: str, fields: dict[str, object], expected: object
) -> None:
    if api == "http":
        world.scheduler.script = answering("x")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        assert (await http.post(CHAT, json=HELLO | fields, headers=headers)).status_code == 200
        start = (await world.started()).start
    else:
        metadata = (("authorization", f"Bearer {key}"),) if key else ()
        call = inference_pb2.GenerateRequest(text="Hello", **fields)
        stream = world.inference.Generate(call, metadata=metadata)
        start = (await world.started()).start
        stream.cancel()
    assert (start.client, start.traffic_class, start.priority) == expected


async def test_a_tier_that_is_not_offered_is_refused_by_name(http: httpx.AsyncClient) -> None:
    response = await http.post(CHAT, json=HELLO | {"service_tier": "priority"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "service_tier")


async def test_a_key_has_no_more_in_progress_than_it_may_and_others_do_not_feel_it(
    world: GatewayWorld, http: httpx.AsyncClient
) -> None:
    stream = world.inference.Generate(CALL, metadata=(("authorization", "Bearer k"),))
    await world.started()
    refused = await http.post(CHAT, json=HELLO, headers={"authorization": "Bearer k"})
    assert (refused.status_code, "retry-after" in refused.headers) == (429, True)
    other = world.inference.Generate(CALL, metadata=(("authorization", "Bearer l"),))
    await world.started()
    stream.cancel()
    other.cancel()


async def test_an_http_client_sets_its_deadline_and_is_told_when_it_has_passed(
    world: GatewayWorld, http: httpx.AsyncClient
) -> None:
    response = await http.post(CHAT, json=HELLO, headers={"x-request-timeout": "0.3"})
    assert response.status_code == 504
    start = (await world.started()).start
    assert 0.0 < start.remaining_seconds <= 0.3
    for nothing in ("soon", "-1", "inf", "nan"):
        world.scheduler.script = answering("x")
        assert (await http.post(CHAT, json=HELLO, headers={"x-request-timeout": nothing})).status_code == 200
        assert not (await world.started()).start.HasField("remaining_seconds")


async def test_the_grpc_edge_says_that_a_key_is_over_its_limit(world: GatewayWorld) -> None:
    world.scheduler.reset()
    metadata = (("authorization", "Bearer m"),)
    first = world.inference.Generate(CALL, metadata=metadata)
    await world.started()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.inference.Generate(CALL, metadata=metadata).read()
    assert dict(caught.value.trailing_metadata() or ())["x-reason"] == "RateLimited"
    first.cancel()
    await world.nothing_held()
