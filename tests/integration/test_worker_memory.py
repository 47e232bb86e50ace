"""A real worker process accounts for its resident memory."""

import asyncio
import os
import sys
from pathlib import Path

import psutil

from services.pb import operations_pb2, operations_pb2_grpc
from services.runtime import dial
from tests.support.local_cluster import prepared_tiny_model
from tests.support.ports import free_port

START_SECONDS = 90


async def asked(address: str) -> operations_pb2.Announcement:
    async with dial.channel(address) as channel:
        stub = operations_pb2_grpc.OperationsStub(channel)
        request = operations_pb2.StatusRequest(with_memory=True)
        return await stub.Status(request, timeout=START_SECONDS, wait_for_ready=True)


async def test_the_kinds_add_up_to_what_the_system_counts(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    settings = {"MODEL": str(prepared_tiny_model(tmp_path)), "LISTEN": address, "EXIT_WITH_PARENT": "true"}
    environment = {f"DIPTYCH_DECODE__{name}": value for name, value in settings.items()}
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.decode", stdin=asyncio.subprocess.PIPE, env={**os.environ, **environment}
    )
    try:
        said = await asked(address)
        counted = psutil.Process(worker.pid).memory_info().rss
        memory = said.memory
        kinds = (
            memory.weights_mapped,
            memory.weights_private,
            memory.kv,
            memory.step,
            memory.code,
            memory.heap,
        )
        assert all(kinds), kinds
        assert abs(sum(kinds) + memory.arena - counted) < 0.1 * counted
        assert memory.kv <= memory.kv_reserved
    finally:
        worker.terminate()
        await worker.wait()
