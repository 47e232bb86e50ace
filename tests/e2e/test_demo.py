"""`diptych demo --json`: a sensible answer, one complete trace over five services, a ledger that adds up."""

import asyncio
import json
import os
import sys

import pytest

from services.modelfiles.prepared import PreparedModel

LEEWAY_SECONDS = 0.005


@pytest.mark.timeout(180)
async def test_the_demo_answers_and_accounts_for_every_millisecond(smollm2: PreparedModel) -> None:
    command = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", "demo", "--json"), stdout=asyncio.subprocess.PIPE, env=dict(os.environ)
    )
    out, _ = await command.communicate()
    assert command.returncode == 0
    told = json.loads(out)
    assert "Paris" in told["text"]
    assert told["usage"]["prompt_tokens"] > 16 and told["usage"]["completion_tokens"] > 4
    assert len(told["trace_id"]) == 32

    segments = told["ledger"]
    assert all(segment["seconds"] >= 0 for segment in segments)
    assert len({segment["segment"] for segment in segments}) == len(segments)
    accounted = sum(segment["seconds"] for segment in segments) + told["remainder_seconds"]
    assert abs(told["e2e_seconds"] - accounted) < LEEWAY_SECONDS
    assert 0 <= told["remainder_seconds"] < 0.05 * told["e2e_seconds"]

    spans = told["spans"]
    assert {span["service"] for span in spans} == {"gateway", "scheduler", "prefill", "decode", "kvstore"}
    names = {span["name"] for span in spans}
    assert names >= {"gateway.request", "gateway.tokenize", "gateway.stream", "scheduler.queue", "scheduler.place"}
    assert names >= {"prefill.queue", "prefill.compute", "kv.put", "kv.get", "decode.admit", "decode.run"}
    assert [span["name"] for span in spans if span["parent"] is None] == ["gateway.request"]
    parents = {span["name"]: span["parent"] for span in spans}
    assert parents["kvstore.put"] == "kv.put" and parents["kvstore.get"] == "kv.get"
