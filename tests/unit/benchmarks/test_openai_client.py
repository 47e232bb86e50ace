"""The client of the servers that are compared, against a scripted one on a real socket."""

import pytest

from peers.arrival import STREAMS, UNDISTURBED, disturbed, undisturbed
from peers.openai_client import OpenAIClient, ServerRefused
from tests.support.scripted_openai import scripted_openai

PROMPTS = [[index] * 8 for index in range(STREAMS)]


async def test_every_answer_is_read_to_its_end_and_counted_as_the_server_says() -> None:
    async with scripted_openai() as server, OpenAIClient(server.address, {"cache_prompt": False}) as client:
        streams = await client.all_at_once(PROMPTS, 6)
    assert [stream.tokens for stream in streams] == [6] * STREAMS
    assert [len(stream.arrivals) for stream in streams] == [6] * STREAMS
    assert all(stream.asked < stream.arrivals[0] <= stream.arrivals[-1] for stream in streams)


async def test_all_servers_are_asked_the_same_but_for_what_only_one_knows() -> None:
    async with scripted_openai() as server, OpenAIClient(server.address, {"cache_prompt": False}) as client:
        await client.complete([1, 2, 3], 2)
    (body,) = server.bodies
    assert body["prompt"] == [1, 2, 3] and body["max_tokens"] == 2
    assert body["temperature"] == 0 and body["ignore_eos"] is True
    assert body["cache_prompt"] is False


async def test_an_answer_that_is_too_short_fails_the_run() -> None:
    async with scripted_openai() as server, OpenAIClient(server.address, {}) as client:
        server.missing = 1
        with pytest.raises(ServerRefused, match="shorter"):
            await client.all_at_once(PROMPTS, 6)


async def test_a_refusal_fails_the_run_with_its_status() -> None:
    async with scripted_openai() as server, OpenAIClient(server.address, {}) as client:
        server.status = 429
        with pytest.raises(ServerRefused, match="429"):
            await client.all_at_once(PROMPTS, 6)


async def test_a_client_that_leaves_keeps_what_it_has_seen() -> None:
    async with scripted_openai() as server, OpenAIClient(server.address, {}) as client:
        stream = await client.complete([1], 100_000, lambda pieces: pieces < 3)
    assert len(stream.arrivals) == 3
    assert stream.tokens == 0


async def test_undisturbed_gaps_are_those_after_all_streams_are_under_way() -> None:
    async with scripted_openai() as server, OpenAIClient(server.address, {}) as client:
        gaps = await undisturbed(client, PROMPTS)
    assert 0 < len(gaps) <= STREAMS * UNDISTURBED
    assert len(server.bodies) == STREAMS


async def test_the_long_prompt_is_sent_once_all_streams_are_under_way_and_ends_them() -> None:
    async with scripted_openai() as server, OpenAIClient(server.address, {}) as client:
        gaps, waited = await disturbed(client, PROMPTS, [7] * 1500)
    assert [len(body["prompt"]) for body in server.bodies] == [8] * STREAMS + [1500]
    assert gaps and all(gap >= 0 for gap in gaps)
    assert waited > 0
