"""Bad input gets a small clear error with the right status from both APIs; the next request works."""

import grpc
import grpc.aio
import httpx
import pytest

from services.cli.cluster import LocalCluster
from services.pb import inference_pb2, inference_pb2_grpc
from services.runtime import dial
from tests.support.asking import ask, request_for, until_calm

pytestmark = pytest.mark.asyncio(loop_scope="session")

ERROR_BYTES = 1024
CONTEXT = 8192


def changed(**changes: object) -> inference_pb2.GenerateRequest:
    request = request_for("Hello", 4)
    for path, value in changes.items():
        target: object = request
        *way, name = path.split("__")
        for part in way:
            target = getattr(target, part)
        setattr(target, name, value)
    return request


GRPC_CASES = {
    "unknown model": (changed(model="gpt-17"), grpc.StatusCode.NOT_FOUND),
    "empty prompt": (changed(text=""), grpc.StatusCode.INVALID_ARGUMENT),
    "no prompt": (inference_pb2.GenerateRequest(), grpc.StatusCode.INVALID_ARGUMENT),
    "prompt over the context": (request_for([50] * (CONTEXT + 1), 4), grpc.StatusCode.INVALID_ARGUMENT),
    "max_tokens 0": (changed(stopping__max_tokens=0), grpc.StatusCode.INVALID_ARGUMENT),
    "max_tokens negative": (changed(stopping__max_tokens=-5), grpc.StatusCode.INVALID_ARGUMENT),
    "temperature NaN": (changed(sampling__temperature=float("nan")), grpc.StatusCode.INVALID_ARGUMENT),
    "token id out of range": (request_for([10**9 % 2**32], 4), grpc.StatusCode.INVALID_ARGUMENT),
    "empty stop string": (changed(stopping__max_tokens=4), None),
}
GRPC_CASES["empty stop string"][0].stopping.stop.append("")
GRPC_CASES["empty stop string"] = (GRPC_CASES["empty stop string"][0], grpc.StatusCode.INVALID_ARGUMENT)


@pytest.mark.parametrize("case", sorted(GRPC_CASES))
async def test_grpc_refuses_it_and_goes_on(split: LocalCluster, case: str) -> None:
    request, status = GRPC_CASES[case]
    async with dial.channel(split.gateway.address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(stub, request)
        assert caught.value.code() == status, caught.value.details()
        details = caught.value.details() or ""
        assert 10 < len(details) < ERROR_BYTES and "gpt-17" not in details
        assert len((await ask(stub, request_for("Hello", 3))).ids) == 3
    await until_calm(split)


async def test_grpc_refuses_text_that_is_not_utf_8(split: LocalCluster) -> None:
    async with dial.channel(split.gateway.address) as channel:
        call = channel.unary_stream("/diptych.v1.Inference/Generate", None, None)(b"\x12\x02\xff\xfe")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_grpc_refuses_five_megabytes(split: LocalCluster) -> None:
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(split.gateway.address, options=options) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(stub, request_for("x" * (5 << 20), 4))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len((await ask(stub, request_for("Hello", 3))).ids) == 3


HTTP_CASES = {
    "unknown model": ({"model": "gpt-17"}, 404),
    "empty prompt": ({"prompt": ""}, 400),
    "prompt over the context": ({"prompt": [50] * (CONTEXT + 1)}, 400),
    "max_tokens 0": ({"max_tokens": 0}, 400),
    "max_tokens negative": ({"max_tokens": -5}, 400),
    "token id out of range": ({"prompt": [10**9]}, 400),
    "n of a million": ({"n": 10**6}, 400),
}


@pytest.mark.parametrize("case", sorted(HTTP_CASES))
async def test_http_refuses_it_and_goes_on(split: LocalCluster, case: str) -> None:
    changes, status = HTTP_CASES[case]
    async with httpx.AsyncClient(base_url=f"http://{split.gateway.http_address}/v1", timeout=60) as client:
        [model] = [each["id"] for each in (await client.get("/models")).json()["data"]]
        good = {"model": model, "prompt": "Hello", "max_tokens": 3, "temperature": 0}
        reply = await client.post("/completions", json=good | changes)
        expect_error(reply, status)
        assert (await client.post("/completions", json=good)).status_code == 200
    await until_calm(split)


@pytest.mark.parametrize(
    ("case", "body", "status"),
    [
        ("temperature NaN", b'{"model": "MODEL", "prompt": "Hi", "temperature": NaN}', 400),
        ("not UTF-8", b'{"model": "MODEL", "prompt": "\xff\xfe"}', 400),
        ("not JSON", b"{", 400),
        ("a lone surrogate", b'{"model": "MODEL", "prompt": "hi \\ud800 there"}', 400),
        ("five megabytes", b'{"model": "MODEL", "prompt": "' + b"x" * (5 << 20) + b'"}', 413),
        ("deep nesting", b'{"model": "MODEL", "prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
    ],
)
async def test_http_refuses_a_broken_body(split: LocalCluster, case: str, body: bytes, status: int) -> None:
    async with httpx.AsyncClient(base_url=f"http://{split.gateway.http_address}/v1", timeout=60) as client:
        [model] = [each["id"] for each in (await client.get("/models")).json()["data"]]
        sent = body.replace(b"MODEL", model.encode())
        reply = await client.post("/completions", content=sent, headers={"content-type": "application/json"})
        expect_error(reply, status)
        assert (await client.get("/models")).status_code == 200


def expect_error(reply: httpx.Response, status: int) -> None:
    assert reply.status_code == status, reply.text[:300]
    assert len(reply.content) < ERROR_BYTES
    error = reply.json()["error"]
    assert error["message"] and error["type"]
    assert "gpt-17" not in reply.text and "Traceback" not in reply.text
