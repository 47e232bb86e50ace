"""The local cluster as processes: it starts, it dies in every way, and it leaves nothing behind."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from services.cli.cluster import LocalCluster
from services.cli.errors import CommandError
from services.cli.layout import ClusterLayout
from services.cli.record import RECORD, load
from tests.support.local_cluster import local_cluster, prepared_tiny_model
from tests.support.shared_memory import left_behind

START_SECONDS = 90
END_SECONDS = 30


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared_tiny_model(tmp_path_factory.mktemp("model"))


def is_bound(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@asynccontextmanager
async def up(model: Path, cache: Path, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`diptych up` on free ports, ready."""
    ports = ["--http-port", "0", "--grpc-port", "0", "--nats-port", "0"]
    command = [sys.executable, "-m", "services.cli", "up", "--model", str(model), *ports, *options]
    supervisor = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, env={**os.environ, "DIPTYCH_CACHE": str(cache)}
    )
    try:
        assert supervisor.stdout is not None
        async with asyncio.timeout(START_SECONDS):
            while line := await supervisor.stdout.readline():
                if b"is ready" in line:
                    break
        assert line, "it ended before it was ready"
        yield supervisor
    finally:
        if supervisor.returncode is None:
            supervisor.terminate()
        await supervisor.communicate()


async def test_a_cluster_becomes_ready_and_leaves_no_process_no_port_and_no_secret(model: Path, tmp_path: Path) -> None:
    shared_before = left_behind()
    async with local_cluster(tmp_path, ClusterLayout(model=model)) as cluster:
        assert set(cluster.processes) == {"gateway-0", "scheduler-0", "prefill-0", "decode-0", "kvstore-0"}
        record = cluster.record()
        addresses = [record.gateway_http, record.collector, *(service.address for service in record.services)]
        assert all(is_bound(address) for address in addresses)
    assert not any(is_bound(address) for address in addresses)
    assert left_behind() <= shared_before
    assert names_in(tmp_path) == {"nats.log", *(f"{name}.log" for name in cluster.processes)}
    assert all(child.exit_code == 0 for child in cluster.processes.values()), "every process drained by itself"


async def test_a_process_that_dies_while_starting_is_reported_with_the_end_of_its_log(
    model: Path, tmp_path: Path
) -> None:
    layout = ClusterLayout(model=model, fields={"decode": {"faults": '{"kv.get": 1}'}})
    with pytest.raises(CommandError, match=r"decode-0 ended with exit code 1(.|\n)*profile = test"):
        async with local_cluster(tmp_path, layout):
            pytest.fail("it cannot be ready")


async def test_nats_comes_back_on_its_port_and_a_killed_worker_can_be_restarted(model: Path, tmp_path: Path) -> None:
    async with local_cluster(tmp_path, ClusterLayout(model=model, prefill=0)) as cluster:
        url, first_life = cluster.nats.url, cluster.announcement("decode-0").incarnation
        await cluster.stop_nats()
        cluster.processes["decode-0"].kill()
        assert (await cluster.until_death()).spec.name == "decode-0"
        await cluster.start_nats()
        assert cluster.nats.url == url
        await cluster.restart("decode-0")
        assert cluster.announcement("decode-0").incarnation != first_life


async def test_a_paused_process_does_not_hold_up_the_end_for_longer_than_its_grace(model: Path, tmp_path: Path) -> None:
    async with local_cluster(tmp_path, ClusterLayout(model=model, prefill=0, drain_seconds=1)) as cluster:
        cluster.processes["decode-0"].pause()
    assert cluster.processes["decode-0"].exit_code is not None


async def test_a_cancelled_start_leaves_no_process(model: Path, tmp_path: Path) -> None:
    begun = asyncio.Event()

    def report(name: str, state: str) -> None:
        begun.set()

    cluster = LocalCluster(ClusterLayout(model=model), tmp_path, os.environ, report)
    starting = asyncio.create_task(cluster.__aenter__())
    await begun.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not any(child.is_alive for child in cluster.processes.values())
    assert cluster.nats.child is not None and not cluster.nats.child.is_alive


async def test_when_the_supervisor_is_killed_every_process_ends_by_itself(model: Path, tmp_path: Path) -> None:
    async with up(model, tmp_path) as supervisor:
        children = psutil.Process(supervisor.pid).children(recursive=True)
        assert len(children) >= 7, "five services, nats-server and its watcher"
        supervisor.kill()
        await supervisor.wait()
        _, alive = await asyncio.to_thread(psutil.wait_procs, children, END_SECONDS)
        assert not alive


async def test_up_shows_its_state_to_other_commands_and_ends_cleanly_on_sigterm(model: Path, tmp_path: Path) -> None:
    async with up(model, tmp_path) as supervisor:
        record = load(tmp_path / "run")
        assert record.pid == supervisor.pid
        code, out = await run_command(tmp_path, "status", "--json")
        assert code == 0 and {row["state"] for row in json.loads(out)} == {"ready"}
        code, out = await run_command(tmp_path, "up", "--model", str(model))
        assert code == 1 and "already running" in out
        supervisor.send_signal(signal.SIGTERM)
        await supervisor.communicate()
        assert supervisor.returncode == 0
    assert not (tmp_path / "run" / RECORD).exists()
    code, out = await run_command(tmp_path, "status")
    assert code == 1 and "no cluster is running" in out


async def run_command(cache: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and everything printed by `diptych` with these arguments."""
    command = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "DIPTYCH_CACHE": str(cache)},
    )
    out, _ = await command.communicate()
    assert command.returncode is not None
    return command.returncode, out.decode()
