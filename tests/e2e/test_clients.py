"""Clients that are not ours: one generated from protos/inference.proto alone, and the official OpenAI one."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from grpc_tools import protoc
from openai import AsyncOpenAI

from services.cli.cluster import LocalCluster
from tests.support.asking import until_calm

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROTOS = Path(__file__).parents[2] / "protos"
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER_SPAN = "00f067aa0ba902b7"

CLIENT = '''
"""A client that knows nothing but the generated code."""
import json, sys, time
import grpc
import inference_pb2 as pb, inference_pb2_grpc as rpc

assert not [name for name in sys.modules if name.startswith("services")]
stub = rpc.InferenceStub(grpc.insecure_channel(sys.argv[1]))
chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="Tell me a long story about the sea.")])

def ask(max_tokens):
    stopping, sampling = pb.Stopping(max_tokens=max_tokens), pb.Sampling(temperature=0)
    return pb.GenerateRequest(chat=chat, stopping=stopping, sampling=sampling)

told = {"models": [model.name for model in stub.ListModels(pb.ListModelsRequest()).models]}

call = stub.Generate(ask(24), metadata=(("traceparent", sys.argv[2]),))
messages = list(call)
told["text"] = "".join(message.text for message in messages)
told["pieces"] = len([message for message in messages if message.text])
done = messages[-1].done
told["tokens"], told["trace_id"] = done.usage.completion_tokens, done.trace_id
told["record"] = stub.GetRequest(pb.GetRequestRequest(request_id=done.request_id)).outcome

call, tokens = stub.Generate(ask(400)), 0
for message in call:
    tokens += len(message.token_ids)
    if tokens >= 3:
        call.cancel()
        break
told["cancelled"] = call.code().name

begin = time.monotonic()
try:
    for message in stub.Generate(ask(400), timeout=1.0):
        pass
except grpc.RpcError as error:
    told["deadline"] = error.code().name
told["deadline_seconds"] = time.monotonic() - begin
print(json.dumps(told))
'''


async def test_a_client_made_from_the_protos_alone(split: LocalCluster, tmp_path: Path) -> None:
    flags = [f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}"]
    assert protoc.main(["protoc", f"-I{PROTOS}", *flags, "inference.proto"]) == 0
    (tmp_path / "client.py").write_text(CLIENT)
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, "client.py", split.gateway.address, f"00-{TRACE_ID}-{CALLER_SPAN}-01"),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await client.communicate()
    assert client.returncode == 0
    told = json.loads(out)
    assert len(told["models"]) == 1
    assert len(told["text"]) > 20 and told["pieces"] > 5, "it streams"
    assert told["tokens"] <= 24 and told["record"] in ("stop", "length")
    assert told["cancelled"] == "CANCELLED"
    assert told["deadline"] == "DEADLINE_EXCEEDED"
    assert told["deadline_seconds"] < 3
    await until_calm(split)

    assert told["trace_id"] == TRACE_ID
    trace = await split.collector.trace(TRACE_ID, 10)
    assert trace.is_complete
    [root] = [span for span in trace.spans if span.name == "gateway.request"]
    assert root.parent_id == CALLER_SPAN
    assert {span.service for span in trace.spans} == {"gateway", "scheduler", "prefill", "decode", "kvstore"}


async def test_the_official_openai_client_streams_a_chat(split: LocalCluster) -> None:
    async with AsyncOpenAI(base_url=f"http://{split.gateway.http_address}/v1", api_key="none") as client:
        models = [model.id async for model in client.models.list()]
        stream = await client.chat.completions.create(
            model=models[0],
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            stream=True,
            stream_options={"include_usage": True},
            temperature=0,
            max_tokens=32,
        )
        chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "Paris" in text
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["stop"]
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens > 3
    assert len(chunks) > 5


async def test_the_official_openai_client_completes_without_streaming(split: LocalCluster) -> None:
    async with AsyncOpenAI(base_url=f"http://{split.gateway.http_address}/v1", api_key="none") as client:
        [model] = [model.id async for model in client.models.list()]
        told = await client.completions.create(
            model=model, prompt="One, two, three,", max_tokens=12, temperature=0, stop=["\n"]
        )
    assert "four" in told.choices[0].text
    assert told.usage is not None and told.usage.prompt_tokens > 3
