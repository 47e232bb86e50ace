"""The servers that are compared: ours split and unsplit, and llama.cpp's own around the same model.

Owns how each is started, on which cores, and its end.
"""

import asyncio
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from peers.child import ContenderFailed
from peers.field import PEERS_PYTHON
from services.cli.cluster import LocalCluster
from services.cli.layout import LOOPBACK, ClusterLayout, cores_of, processors_of

LLAMA_SERVER = PEERS_PYTHON.with_name("llama-server")
READY_SECONDS = 120.0
POLL_SECONDS = 0.2
END_SECONDS = 20.0
TAIL_CHARACTERS = 2000
SLOTS = 16
CONTEXT = 2048
"""Tokens a request may have on any of the servers; the longest here has 1 502."""
SPLIT_CORES = (0, 1)
BATCH = {"max_running": str(SLOTS)}
"""All of a workload in one batch. The default is for workers that share a machine with more than the benchmark."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers."""

    name: str
    address: str
    """`host:port` of its OpenAI API."""
    settings: Mapping[str, Any]
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a request that only this server knows."""
    client_processors: tuple[int, ...] = ()
    """Those that its client keeps to; none leaves it all."""

    @contextmanager
    def turn(self) -> Iterator[None]:
        """In which this server is the one that is asked."""
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.client_processors or allowed)
        try:
            yield
        finally:
            os.sched_setaffinity(0, allowed)


@asynccontextmanager
async def split(model: Path, logs: Path) -> AsyncIterator[Server]:
    """One prefill and one decode worker, a thread and a core each; all else, the client too, runs beside prefill."""
    layout = ClusterLayout(model=model, threads=1, processors=SPLIT_CORES, fields={"prefill": BATCH, "decode": BATCH})
    async with _cluster(layout, logs / "split") as cluster:
        cores = {name: cores_of(layout, name, 0) for name in ("decode", "prefill")}
        settings = {"threads": 1, "cores": cores, **BATCH}
        beside = processors_of(layout, "gateway", 0)
        yield Server("split", cluster.gateway.http_address, settings, client_processors=beside)


@asynccontextmanager
async def unsplit(model: Path, logs: Path, threads: int) -> AsyncIterator[Server]:
    """One worker with all cores."""
    cores = tuple(range(threads))
    layout = ClusterLayout(
        model=model, prefill=0, kvstore=0, threads=threads, processors=cores, fields={"decode": BATCH}
    )
    async with _cluster(layout, logs / "unsplit") as cluster:
        yield Server("unsplit", cluster.gateway.http_address, {"threads": threads, "cores": cores, **BATCH})


@asynccontextmanager
async def llama_server(form: str, file: str, logs: Path, threads: int) -> AsyncIterator[Server]:
    """llama.cpp's server, tuned as the engine is: flash attention, a KV cache per sequence. Raises ContenderFailed."""
    if not LLAMA_SERVER.is_file():
        raise ContenderFailed("llama.cpp's server is not installed; `make bench-peers` does it")
    address = f"{LOOPBACK}:{_free_port()}"
    options = {
        "--host": LOOPBACK,
        "--port": address.rpartition(":")[2],
        "--threads": str(threads),
        "--threads-batch": str(threads),
        "--parallel": str(SLOTS),
        "--ctx-size": str(SLOTS * CONTEXT),
        "--flash-attn": "on",
        "--cache-ram": "0",
    }
    command = [str(LLAMA_SERVER), "--model", file, "--no-kv-unified"]
    command += [part for option in options.items() for part in option]
    log = logs / f"llama-server-{form}.log"
    process = _started(command, log)
    try:
        if not await _is_ready(process, address):
            raise ContenderFailed(f"llama.cpp's server is not ready\n{_tail(log)}")
        yield Server(f"llama-server {form}", address, options, {"cache_prompt": False})
    finally:
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@asynccontextmanager
async def _cluster(layout: ClusterLayout, logs: Path) -> AsyncIterator[LocalCluster]:
    _make(logs)
    async with LocalCluster(layout, logs, os.environ) as cluster:
        yield cluster


def _started(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def _make(directory: Path) -> None:
    directory.mkdir()


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-TAIL_CHARACTERS:]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


async def _is_ready(process: subprocess.Popen[bytes], address: str) -> bool:
    """False if it ended or takes too long."""
    async with httpx.AsyncClient() as client:
        for _ in range(round(READY_SECONDS / POLL_SECONDS)):
            if process.poll() is not None:
                return False
            try:
                if (await client.get(f"http://{address}/health")).status_code == httpx.codes.OK:
                    return True
            except httpx.TransportError:
                pass
            await asyncio.sleep(POLL_SECONDS)
    return False
