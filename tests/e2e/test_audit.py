"""The audit on a real cluster: clean while requests run and when none does, and what is stranded on purpose is found.

The store stands for whoever forgets: a stray worker, which no process of the cluster knows, claims a hand-over there.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
import pytest_asyncio

from services.cli.asking import Asking
from services.cli.audit import audited
from services.cli.cluster import LocalCluster
from services.cli.cluster_audit import ClusterAudit
from services.cli.layout import ClusterLayout
from services.cli.record import owned, save
from services.core.audit import stranded
from services.pb import inference_pb2_grpc, kvstore_pb2, kvstore_pb2_grpc, operations_pb2, session_pb2
from services.runtime import dial
from services.runtime.session import PROTOCOL, Session, Terms
from services.runtime.session_pool import SessionPool
from tests.support.asking import ask, request_for, until_calm
from tests.support.local_cluster import local_cluster, prepared_tiny_model

GRACE = 0.5
"""Nothing here is slow, so what is let go is let go soon."""
PATIENCE = 60.0
"""On a busy machine a session may be silent for a while."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    model = prepared_tiny_model(tmp_path_factory.mktemp("model"))
    patient = {"kvstore": {"session_timeout": f"{PATIENCE:g}"}}
    async with local_cluster(tmp_path_factory.mktemp("cluster"), ClusterLayout(model=model, fields=patient)) as running:
        yield running


class Stray:
    """A session with a store; nobody's worker."""

    def __init__(self) -> None:
        self.has_heard = asyncio.Event()

    def opened(self, session: Session[kvstore_pb2.StoreDown]) -> None:
        """Whatever the store says first is its answer to Hello."""

    def received(self, session: Session[kvstore_pb2.StoreDown], message: kvstore_pb2.StoreUp, now: float) -> None:
        self.has_heard.set()

    def closed(self, session: Session[kvstore_pb2.StoreDown]) -> None:
        """It is gone, and what it claimed with it."""


@asynccontextmanager
async def claimed(cluster: LocalCluster, request_id: str) -> AsyncIterator[None]:
    """A hand-over of the store that no worker of the cluster knows of. Each id once: the store remembers it."""
    worker, stray = cluster.announcement("decode-0"), Stray()
    hello = session_pb2.Hello(
        protocol=PROTOCOL, name="stray", incarnation="life", fingerprint=worker.fingerprint, format=worker.format
    )
    address = cluster.announcement("kvstore-0").address
    async with SessionPool(kvstore_pb2.StoreDown, opened, stray, Terms(hello, PATIENCE), cluster.token) as pool:
        pool.ensure(address)
        async with asyncio.timeout(5):
            while (session := pool.session(address)) is None:
                await asyncio.sleep(0.01)
            handoff = kvstore_pb2.HandoffKey(request_id=request_id, attempt=3)
            session.send(kvstore_pb2.StoreDown(claim=kvstore_pb2.Claim(handoff=handoff)))
            while not await holds(cluster, "kvstore-0", request_id):
                await asyncio.sleep(0.01)
        yield
    await until_calm(cluster)


def opened(
    channel: grpc.aio.Channel,
) -> "grpc.aio.StreamStreamMultiCallable[kvstore_pb2.StoreDown, kvstore_pb2.StoreUp]":
    return kvstore_pb2_grpc.KVStoreStub(channel).Open


async def holds(cluster: LocalCluster, name: str, request_id: str) -> bool:
    async with Asking(cluster.token) as asking:
        snapshots = await asking.look(cluster.living())
    return any(each.name == name and any(one.request_id == request_id for one in each.held) for each in snapshots)


async def command(cluster: LocalCluster, cache: Path, *options: str) -> tuple[int, str]:
    """Exit code and output of `diptych audit` on this cluster."""
    state = cache / "run"
    with owned(state):
        save(cluster.record(), state)
        run = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services.cli", "audit", *options),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "DIPTYCH_CACHE": str(cache), "COLUMNS": "200"},
        )
        out, _ = await run.communicate()
    assert run.returncode is not None
    return run.returncode, out.decode()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_cluster_at_rest_and_one_at_work_hold_nothing_stranded(cluster: LocalCluster) -> None:
    audit = ClusterAudit(cluster.token, cluster.living, GRACE)
    async with audit.standing(), dial.channel(cluster.gateway.address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        while audit.num_looks < 4:
            await asyncio.gather(*(ask(stub, request_for([3 + n, *range(10, 200)], max_tokens=40)) for n in range(6)))
    assert audit.num_stranded == 0
    await until_calm(cluster)
    finding = await audited(cluster.record())
    assert (finding.stranded, finding.silent, finding.num_held) == ([], [], 0)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_stranded_hand_over_is_found_with_its_age_and_its_last_owner(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    async with claimed(cluster, "lost"):
        code, out = await command(cluster, tmp_path, "--json")
        (row,) = json.loads(out)["stranded"]
        assert code == 1
        assert (row["name"], row["kind"], row["request_id"], row["attempt"]) == ("kvstore-0", "handoff", "lost", 3)
        assert row["owner"] == "stray/life" and row["age_seconds"] > 5 and row["last_heard_seconds"] < 2
        code, out = await command(cluster, tmp_path)
        assert code == 1
        assert "kvstore-0" in out and "1 handoff (claimed)" in out and "lost/3" in out and "stray/life" in out
        assert "no worker has a publication or a fetch for it" in out
    code, out = await command(cluster, tmp_path)
    assert code == 0 and "nothing is stranded; 5 processes" in out


@pytest.mark.asyncio(loop_scope="module")
async def test_the_standing_audit_counts_and_logs_what_it_finds(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    audit = ClusterAudit(cluster.token, cluster.living, GRACE)
    async with claimed(cluster, "logged"), audit.standing(), asyncio.timeout(10):
        while not audit.latest:
            await asyncio.sleep(0.05)
    assert audit.num_stranded >= 1
    assert "stranded: kvstore-0 holds 1 handoff of logged/3" in caplog.text


@pytest.mark.asyncio(loop_scope="module")
async def test_a_process_that_does_not_answer_is_named_and_what_it_may_know_is_let_pass(cluster: LocalCluster) -> None:
    async with claimed(cluster, "asleep"), Asking(cluster.token) as asking:
        cluster.processes["prefill-0"].pause()
        try:
            before = await asking.look(cluster.living())
            after = await asking.look(cluster.living())
        finally:
            cluster.processes["prefill-0"].resume()
        assert [each.name for each in before if each.is_silent] == ["prefill-0"]
        assert stranded(before, after, grace=0.0) == []


@pytest.mark.asyncio(loop_scope="module")
async def test_a_process_tells_how_old_the_oldest_thing_is_that_it_holds(cluster: LocalCluster) -> None:
    store, scheduler = cluster.announcement("kvstore-0"), cluster.announcement("scheduler-0")
    async with asyncio.timeout(30):
        while await oldest(store):
            await asyncio.sleep(0.1)
        async with claimed(cluster, "oldest"):
            while await oldest(store) < 0.5:
                await asyncio.sleep(0.1)
            assert await oldest(scheduler) == 0


async def oldest(process: operations_pb2.Announcement) -> float:
    host, _, port = process.metrics_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
    page = (await reader.read()).decode()
    writer.close()
    (line,) = [each for each in page.splitlines() if each.startswith("diptych_oldest_holding_seconds ")]
    return float(line.partition(" ")[2])
