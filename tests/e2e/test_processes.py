"""What the processes are: on uvloop, the light ones without torch, each answering for itself."""

import asyncio
import urllib.request

import grpc.aio
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from services.cli.cluster import LocalCluster
from services.cli.memory import memory_json
from services.cli.status import reports
from services.pb import operations_pb2, operations_pb2_grpc
from services.runtime import dial
from tests.support.local_cluster import LIGHT_PYTHON

pytestmark = pytest.mark.asyncio(loop_scope="session")

LIGHT = ("gateway-0", "scheduler-0", "kvstore-0")


async def status(cluster: LocalCluster, name: str) -> operations_pb2.Announcement:
    async with dial.channel(cluster.announcement(name).address) as channel:
        stub = operations_pb2_grpc.OperationsStub(channel)
        return await stub.Status(operations_pb2.StatusRequest(), metadata=dial.call_metadata(cluster.token))


async def test_every_process_runs_on_uvloop(split: LocalCluster) -> None:
    loops = {name: (await status(split, name)).event_loop for name in split.processes}
    assert loops == dict.fromkeys(split.processes, "uvloop.Loop")


async def test_gateway_scheduler_and_kvstore_run_where_torch_is_not_installed(split: LocalCluster) -> None:
    assert not list((LIGHT_PYTHON.parent.parent / "lib").glob("python*/site-packages/torch"))
    for name in LIGHT:
        assert split.processes[name].spec.command[0] == str(LIGHT_PYTHON)
        assert not (await status(split, name)).has_torch
    # Where torch is installed, a worker with the compiled engine does without it too.
    assert not (await status(split, "decode-0")).has_torch


async def test_every_process_accounts_for_its_memory_within_a_tenth(split: LocalCluster) -> None:
    kinds = ("weights_mapped", "weights_private", "kv_resident", "step", "arena", "code", "heap")
    for report in await reports(split.record(), with_memory=True):
        found = memory_json(report)
        assert found is not None, report.recorded.name
        counted = psutil.Process(report.recorded.pid).memory_info().rss
        assert abs(sum(found[kind] for kind in kinds) - counted) < 0.1 * counted, report.recorded.name
        if report.recorded.service in ("prefill", "decode"):
            assert found["weights_mapped"] > 50e6  # a step has read nearly all of the 98 MB
            assert found["kv_used"] + found["kv_cached"] + found["kv_free"] > found["kv_resident"] > 0
            assert found["arena"] > 300e6  # all of the store's is mapped
        else:
            assert found["weights_mapped"] == found["kv_resident"] == 0


async def test_every_server_has_health_reflection_and_metrics(split: LocalCluster) -> None:
    for name in split.processes:
        async with dial.channel(split.announcement(name).address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            for service in ("", "ready"):
                answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
            assert "diptych.internal.Operations" in await reflected(channel)
        page = await asyncio.to_thread(fetch, f"http://{split.announcement(name).metrics_address}/metrics")
        assert "diptych_" in page or name.startswith("scheduler")


async def reflected(channel: grpc.aio.Channel) -> set[str]:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    answer = await call.read()
    call.cancel()
    return {service.name for service in answer.list_services_response.service}


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as reply:
        return reply.read().decode()


async def test_internal_calls_from_strangers_are_refused(split: LocalCluster) -> None:
    for name in split.processes:
        async with dial.channel(split.announcement(name).address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await operations_pb2_grpc.OperationsStub(channel).Audit(operations_pb2.AuditRequest())
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


async def test_nothing_listens_beyond_loopback(split: LocalCluster) -> None:
    addresses = [split.announcement(name).address for name in split.processes]
    assert all(address.startswith("127.0.0.1:") for address in addresses)
