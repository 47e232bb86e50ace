"""A local cluster for tests: real processes, a real nats-server; whatever a test does to it, nothing is left."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil

from services.cli.cluster import LocalCluster
from services.cli.layout import ClusterLayout
from services.modelfiles.prepare import prepare
from tests.support.tiny_model import write_tiny_hf_model

LIGHT_PYTHON = Path(sys.prefix) / "light" / "bin" / "python"
"""An environment with the base install only: no torch."""


def prepared_tiny_model(directory: Path) -> Path:
    """A small random model, prepared as services open it."""
    return prepare(write_tiny_hf_model(directory / "tiny"), directory / "cache")


@asynccontextmanager
async def local_cluster(directory: Path, layout: ClusterLayout) -> AsyncIterator[LocalCluster]:
    """A ready cluster with its logs in `directory`; on leaving, no process of it may live.

    Requests are split wherever they can be, unless the layout says otherwise: a test is to know which way they go.
    """
    directory.mkdir(parents=True, exist_ok=True)
    scheduler = {"split": "always", **layout.fields.get("scheduler", {})}
    layout = replace(layout, fields={**layout.fields, "scheduler": scheduler})
    cluster = LocalCluster(layout, directory, os.environ)
    try:
        async with cluster:
            yield cluster
    finally:
        assert not living_below(os.getpid(), cluster), "processes of the cluster outlive it"


def living_below(pid: int, cluster: LocalCluster) -> list[str]:
    """Names of the cluster's processes that still run below `pid`."""
    names = {child.pid: child.spec.name for child in cluster.processes.values()}
    if cluster.nats.child is not None:
        names[cluster.nats.child.pid] = "nats"
    running = {child.pid for child in psutil.Process(pid).children(recursive=True)}
    return [name for pid, name in names.items() if pid in running]
