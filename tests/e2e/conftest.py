"""Clusters of real processes on the real model. Gateway, scheduler and kvstore run in an environment without torch."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from services.cli.cluster import LocalCluster
from services.cli.layout import ClusterLayout
from services.modelfiles.prepared import PreparedModel
from tests.support.local_cluster import LIGHT_PYTHON, local_cluster
from tests.support.reference import Reference

LIGHT = {"gateway": LIGHT_PYTHON, "scheduler": LIGHT_PYTHON, "kvstore": LIGHT_PYTHON}


@pytest.fixture(scope="session")
def reference(smollm2_gguf: Path) -> Reference:
    return Reference(smollm2_gguf)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def split(smollm2: PreparedModel, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    """One of each service."""
    layout = ClusterLayout(model=smollm2.directory, pythons=LIGHT)
    async with local_cluster(tmp_path_factory.mktemp("split"), layout) as cluster:
        yield cluster
