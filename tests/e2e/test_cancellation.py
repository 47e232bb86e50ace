"""A client that is killed, mid-prefill or mid-stream: within two seconds nothing is held for it on any process."""

import asyncio
import sys
from pathlib import Path

import grpc.aio
import httpx
import pytest

from services.cli.cluster import LocalCluster
from services.pb import inference_pb2_grpc
from services.runtime import dial
from tests.support.asking import ask, audit, request_for, until_calm, used_blocks

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG = [1000 + number % 4000 for number in range(1500)]

CLIENT = """
import sys, asyncio
from services.pb import inference_pb2_grpc
from services.runtime import dial
from tests.support.asking import request_for

async def main(address, seed, length, until):
    async with dial.channel(address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        prompt = [(seed * 7919 + number * 31) % 40000 + 100 for number in range(length)]
        print("sending", flush=True)
        tokens = 0
        async for message in stub.Generate(request_for(prompt, 400)):
            tokens += len(message.token_ids)
            if tokens >= until:
                print("streaming", flush=True)

asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
"""


async def killed_client(cluster: LocalCluster, seed: int, length: int, line: bytes) -> None:
    """A client process that is killed as soon as it has printed `line`; for "sending", once prefill computes."""
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CLIENT, cluster.gateway.address, str(seed), str(length), "3"),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert client.stdout is not None
        async with asyncio.timeout(60):
            while line not in await client.stdout.readline():
                assert client.returncode is None
            while line == b"sending" and not any("prefill.compute" in held for held in await audit(cluster)):
                await asyncio.sleep(0.02)
    finally:
        client.kill()
        await client.wait()


@pytest.mark.parametrize("length", [40, 1500])
async def test_a_client_killed_mid_prefill_leaves_nothing(split: LocalCluster, length: int) -> None:
    if length == 40:
        # Too short to be caught computing by itself: it is caught behind a long one.
        async with dial.channel(split.gateway.address) as channel:
            behind = inference_pb2_grpc.InferenceStub(channel).Generate(request_for(LONG, 4))
            await killed_client(split, 1, length, b"sending")
            behind.cancel()
    else:
        await killed_client(split, 2, length, b"sending")
    await until_calm(split)
    assert set((await used_blocks(split)).values()) == {0}


@pytest.mark.parametrize("length", [40, 1500])
async def test_a_client_killed_mid_stream_leaves_nothing(split: LocalCluster, length: int) -> None:
    await killed_client(split, 3, length, b"streaming")
    await until_calm(split)
    assert set((await used_blocks(split)).values()) == {0}


async def test_a_cancelled_http_request_leaves_nothing_streaming_or_not(split: LocalCluster) -> None:
    url = f"http://{split.gateway.http_address}/v1"
    async with httpx.AsyncClient(timeout=60) as client:
        [model] = [each["id"] for each in (await client.get(f"{url}/models")).json()["data"]]
        body = {"model": model, "prompt": LONG, "max_tokens": 300, "ignore_eos": True}
        for is_streaming in (True, False):
            task = asyncio.create_task(client.post(f"{url}/completions", json=body | {"stream": is_streaming}))
            while not any("prefill.compute" in held for held in await audit(split)):
                assert not task.done()
                await asyncio.sleep(0.02)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await until_calm(split)


async def test_a_deadline_mid_prefill_leaves_nothing(split: LocalCluster) -> None:
    async with dial.channel(split.gateway.address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        call = stub.Generate(request_for(LONG[::-1], 4), timeout=0.8)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in call:
                pass
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        await until_calm(split)
        told = await ask(stub, request_for([50, 51, 52], 4))
    assert len(told.ids) == 4
