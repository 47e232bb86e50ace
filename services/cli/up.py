"""`diptych up`: a cluster on this machine until it is told to stop."""

import shutil
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from services.cli.child import Child
from services.cli.cluster import LocalCluster, Report
from services.cli.control import controlled
from services.cli.errors import CommandError
from services.cli.layout import ESSENTIAL, ClusterLayout
from services.cli.record import ClusterRecord, owned, save
from services.cli.terminal import Steps


async def up(layout: ClusterLayout, state: Path, environment: Mapping[str, str], console: Console) -> None:
    """Runs the cluster until this is cancelled; ends by itself only with a CommandError.

    `state` gets the record that other commands read, and the logs of the latest cluster.
    """
    with owned(state), Steps(Console(stderr=True)) as steps:
        logs = _emptied(state / "logs")
        async with LocalCluster(layout, logs, environment, steps.member) as cluster:
            steps.pause()
            await _supervise(cluster, state, console)


async def _supervise(cluster: LocalCluster, state: Path, console: Console) -> None:
    async def scale(wish: Mapping[str, int], report: Report) -> None:
        await cluster.scale(wish, report)
        save(replace(cluster.record(), control=address), state)

    async with controlled(cluster.token, scale) as address:
        save(replace(cluster.record(), control=address), state)
        console.print(Text(welcome(cluster.record(), state / "logs")), soft_wrap=True)
        await _watch(cluster, console)


def welcome(record: ClusterRecord, logs: Path) -> str:
    """Where to find what, and a call to try."""
    return f"""
Diptych is ready.

  OpenAI API   http://{record.gateway_http}/v1
  gRPC         {record.gateway_grpc}
  logs         {logs}

Try it:

  diptych chat
  curl http://{record.gateway_http}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'
  diptych trace last

Ctrl-C stops the cluster."""


async def _watch(cluster: LocalCluster, console: Console) -> None:
    """Tells of every process that dies; raises CommandError when nobody is left to answer."""
    dead: set[int] = set()
    while True:
        child = await cluster.until_death(dead)
        dead.add(child.pid)
        if lost := _lost_service(cluster.processes.values()):
            raise CommandError(f"no {lost} is left, so the cluster stops: {child.obituary()}")
        console.print(Text(child.obituary(), style="yellow"), soft_wrap=True)


def _lost_service(children: Collection[Child]) -> str | None:
    """An essential service of which no process lives."""
    alive = {child.spec.service for child in children if child.is_alive}
    return next((service for service in ESSENTIAL if service not in alive), None)


def _emptied(directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700, parents=True)
    return directory
