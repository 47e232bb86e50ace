"""What stores keep is used by whoever needs it: by another worker, by a request that goes on elsewhere, from afar.

Workers are told directly what a scheduler would tell them. A token costs them, as they say, so much that everything
that can be fetched is.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from services.cli.asking import Asking
from services.cli.record import ServiceRecord
from services.core.audit import stranded
from services.core.block_facts import BlockSource, short
from services.core.blocks import hashes, root
from services.core.ids import BlockHash, RequestId, RequestKey
from services.core.request import FinishReason, Request, Role, Sampling, Stopping
from services.core.step_cost import StepCost
from services.pb import kvstore_pb2, kvstore_pb2_grpc, session_pb2, session_pb2_grpc
from services.runtime import dial
from services.runtime.answer_keeping import SHARE
from services.runtime.session import PROTOCOL, Terms
from services.runtime.session_pool import SessionPool
from tests.integration.test_split import prompt_of
from tests.support.scripted_cluster import LIMITS, VOCAB, Answer, Caller, ScriptedCluster, scripted_cluster
from tests.support.scripted_runner import continuation

DEAR = replace(LIMITS, cost=StepCost(0.0, 0.05, 0.0), step_seconds=50.0)
PROMPT = prompt_of(100)
BLOCK = LIMITS.block_size
FULL = len(PROMPT) // BLOCK


@asynccontextmanager
async def caller_of(cluster: ScriptedCluster, name: str) -> AsyncIterator[Caller]:
    """A session with one worker."""
    caller = Caller()
    hello = session_pb2.Hello(protocol=PROTOCOL, name=f"caller-of-{name}", incarnation=name)
    terms = Terms(hello, 5.0)
    async with SessionPool(session_pb2.Down, lambda c: session_pb2_grpc.SessionStub(c).Open, caller, terms, "") as pool:
        pool.ensure(cluster.members[name].address)
        await caller.is_open.wait()
        yield caller


def whole(name: str, tokens: int, emitted: Sequence[int] = (), role: Role = Role.WHOLE) -> Request:
    key = RequestKey(RequestId(name), 1 if emitted else 0)
    return Request(key, tuple(PROMPT), Sampling(temperature=0.0), Stopping(tokens), tuple(emitted), role)


async def told(cluster: ScriptedCluster, worker: str, request: Request, via: str = "", source: str = "") -> Answer:
    """What a worker answers; `source` is the store that is said to hold all that is known."""
    blocks = len(request.tokens) // BLOCK
    sources = [BlockSource(cluster.members[source].address, blocks)] if source else []
    kvstore = cluster.members[via].address if via else ""
    async with caller_of(cluster, worker) as caller:
        answer = caller.asked(request, kvstore, sources)
        return await answer.end()


async def kept(cluster: ScriptedCluster, store: str, names: Sequence[BlockHash]) -> int:
    """Of these blocks, how many a store has."""
    async with dial.channel(cluster.members[store].address) as channel:
        stub = kvstore_pb2_grpc.KVStoreStub(channel)
        there = {name async for part in stub.Inventory(kvstore_pb2.InventoryRequest()) for name in part.added}
    return len({short(name) for name in names} & there)


async def until_kept(cluster: ScriptedCluster, store: str, tokens: Sequence[int]) -> None:
    names = hashes(root(bytes.fromhex("ab" * 32), b""), tokens, BLOCK)
    async with asyncio.timeout(10):
        while await kept(cluster, store, names) < len(names):
            await asyncio.sleep(0.01)


def counted(cluster: ScriptedCluster, worker: str, metric: str, label: str) -> Mapping[str, float]:
    """By the value of a label."""
    found: Counter[str] = Counter()
    for family in cluster.members[worker].process.metrics.registry.collect():
        for sample in family.samples:
            if sample.name == metric and sample.value:
                found[sample.labels[label]] += sample.value
    return found


@pytest.mark.parametrize("attach", [True, False])
async def test_a_whole_request_fetches_its_prompts_beginning_and_a_resumed_one_all_but_its_tail(attach: bool) -> None:
    right = continuation(PROMPT, 60, VOCAB)
    async with scripted_cluster(prefill=0, decode=3, limits=DEAR, working={"attach": attach}) as cluster:
        first = await told(cluster, "decode-0", whole("a", 40))
        assert first.ids == right[:40]
        known = [*PROMPT, *right[:39]]
        await until_kept(cluster, "kvstore-0", known[: len(known) // BLOCK * BLOCK])
        other = await told(cluster, "decode-1", whole("b", 60), source="kvstore-0")
        assert (other.ids, other.finished.cached_tokens) == (right, FULL * BLOCK)
        assert "decode.fetch" in {segment.name for segment in other.segments}
        assert counted(cluster, "decode-1", "diptych_prefix_tokens_total", "source") == {"store": 96, "computed": 4}
        # Of 100 and 39 tokens eight blocks are full: 11 are left, of which the last is new to everybody.
        resumed = await told(cluster, "decode-2", whole("c", 60, right[:40]), source="kvstore-0")
        assert resumed.ids == right[40:]
        tail = len(known) % BLOCK
        assert counted(cluster, "decode-2", "diptych_recomputed_tokens_total", "reason") == {"resumed": tail}
        (plan, *_) = cluster.members["decode-2"].runner.plans
        assert [len(chunk.tokens) for chunk in plan.chunks] == [tail + 1]


async def test_a_prefix_that_is_used_elsewhere_stands_in_both_stores() -> None:
    """So what is hot is copied to where it is needed, by use; and what is not gives way there as anything does."""
    async with scripted_cluster(prefill=2, decode=2, limits=DEAR, stores=2) as cluster:
        blocks = PROMPT[: FULL * BLOCK]
        await handed_over(cluster, 0, whole("a", 9, role=Role.PREFILL))
        await until_kept(cluster, "kvstore-0", blocks)
        assert (await cluster.status("kvstore-1")).load.blocks_cached == 0
        answer = await handed_over(cluster, 1, whole("b", 9, role=Role.PREFILL), source="kvstore-0")
        assert answer.finished.cached_tokens == FULL * BLOCK
        assert counted(cluster, "prefill-1", "diptych_prefix_tokens_total", "source") == {"store": 96, "computed": 4}
        await until_kept(cluster, "kvstore-1", blocks)
        await until_kept(cluster, "kvstore-0", blocks)


async def handed_over(cluster: ScriptedCluster, node: int, request: Request, source: str = "") -> Answer:
    """What the prefill worker of a node says, whose decode worker takes the hand-over through the node's store."""
    store = f"kvstore-{node}"
    reading = asyncio.create_task(told(cluster, f"decode-{node}", replace(request, role=Role.DECODE), store))
    answer = await told(cluster, f"prefill-{node}", request, store, source)
    assert answer.reason is FinishReason.HANDED_OVER
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    return answer


async def test_what_is_still_copied_for_a_request_that_is_over_is_seen_and_not_stranded() -> None:
    slow = {"decode": {"kv.out": 0.25}}
    async with scripted_cluster(prefill=0, limits=DEAR, faults=slow) as cluster:
        for seed in (0, 1):
            assert (await cluster.caller.start(prompt_of(100, seed), 2).end()).error is None
        # At most an eighth of the worker's blocks is on its way; what the second has beyond that is not kept.
        blocks = counted(cluster, "decode-0", "diptych_kv_blocks_total", "outcome")
        assert 0 < blocks["dropped"] <= 2 * FULL - DEAR.num_blocks // SHARE
        records = [
            ServiceRecord(name.partition("-")[0], name, member.address, 0) for name, member in cluster.members.items()
        ]
        async with Asking("") as asking:
            looks = []
            while len(looks) < 2 or looks[-1][0].asked - looks[0][0].heard < 0.6:
                looks.append(await asking.look(records))
                await asyncio.sleep(0.05)
        kinds = [{one.kind for each in look for one in each.held if one.request_id} for look in looks]
        assert all(seen >= {"keeping", "granted"} for seen in kinds)
        assert not any("publication" in seen or "work" in seen for seen in kinds[1:])
        assert stranded(looks[0], looks[-1], grace=0.5) == []
