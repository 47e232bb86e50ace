"""The anchor under every planted fault: slower, or answered by recomputing, but never another token, never a hang."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

from services.cli.cluster import LocalCluster
from services.cli.errors import CommandError
from services.cli.layout import ClusterLayout
from services.core.fault_plan import SEAMS
from tests.faults.clusters import Shape, layout
from tests.faults.conftest import Known
from tests.faults.proof import all_right, counted, nothing_is_left, proven, times_struck
from tests.faults.traffic import Traffic
from tests.support.local_cluster import local_cluster


class Trial(NamedTuple):
    """What is planted, in which service."""

    service: str
    seam: str
    plant: float | Mapping[str, float]
    way: Literal["near", "far"] = "near"


LATE = (
    Trial("gateway", "gateway.tokenize", 0.05),
    Trial("gateway", "gateway.start", 0.02),
    Trial("gateway", "gateway.stream", 0.05),
    Trial("scheduler", "scheduler.queue", 0.05),
    Trial("scheduler", "scheduler.start", 0.02),
    Trial("scheduler", "scheduler.first_token", 0.02),
    Trial("scheduler", "scheduler.step", 0.002),
    Trial("kvstore", "store.step", 0.005),
    Trial("prefill", "prefill.step", 0.03),
    Trial("decode", "decode.step", 0.01),
    Trial("prefill", "kv.put", 0.1),
    Trial("prefill", "kv.put", 0.1, "far"),
    Trial("decode", "kv.get", 0.1),
    Trial("decode", "kv.get", 0.1, "far"),
    Trial("prefill", "kv.out", 0.01),
    Trial("decode", "kv.in", 0.01),
    Trial("prefill", "kv.written", 0.05),
    Trial("prefill", "kv.part", 0.01, "far"),
)
NARROW = (
    Trial("prefill", "kv.put", {"throttle": 1e6}),
    Trial("prefill", "kv.put", {"throttle": 1e6}, "far"),
    Trial("decode", "kv.get", {"throttle": 1e6}),
    Trial("decode", "kv.get", {"throttle": 1e6}, "far"),
)
BAD = (
    Trial("prefill", "kv.out", {"corrupt": 1, "every": 9}),
    Trial("prefill", "kv.out", {"corrupt": 1, "every": 9}, "far"),
    Trial("decode", "kv.in", {"corrupt": 1, "every": 9}),
    Trial("decode", "kv.in", {"corrupt": 1, "every": 9}, "far"),
    Trial("decode", "kv.in", {"corrupt": 1}),
    Trial("prefill", "kv.written", {"drop": 1, "every": 5}),
    Trial("prefill", "kv.written", {"duplicate": 1, "every": 5}),
    Trial("prefill", "kv.written", {"reorder": 2, "every": 5}),
    Trial("prefill", "kv.part", {"corrupt": 1, "every": 19}, "far"),
    Trial("prefill", "kv.part", {"drop": 1, "every": 19}, "far"),
    Trial("prefill", "kv.part", {"duplicate": 1, "every": 19}, "far"),
    Trial("prefill", "kv.part", {"reorder": 3, "every": 19}, "far"),
)
FATAL = (
    Trial("kvstore", "store.step", {"die": 1, "after": 300}),
    Trial("prefill", "prefill.step", {"die": 1, "after": 50}),
    Trial("prefill", "kv.out", {"die": 1, "after": 100}),
    Trial("prefill", "kv.out", {"die": 1, "after": 100}, "far"),
    Trial("decode", "decode.step", {"die": 1, "after": 250}),
    Trial("decode", "kv.in", {"die": 1, "after": 600}),
)
"""Every process of the service dies at such a passage, and each of its later lives does so again."""


def trials(*kinds: tuple[Trial, ...]) -> pytest.MarkDecorator:
    known = [trial for kind in kinds for trial in kind]
    return pytest.mark.parametrize("trial", known, ids=[f"{t.seam} {t.plant} {t.way}" for t in known])


def layout_of(trial: Trial, model: Path) -> ClusterLayout:
    return layout(model, Shape(way=trial.way), {trial.service: {trial.seam: trial.plant}})


@pytest.mark.anchor
@trials(LATE, NARROW, BAD)
async def test_answers_are_right_with(trial: Trial, known: Known, tiny_model: Path, tmp_path: Path) -> None:
    async with local_cluster(tmp_path, layout_of(trial, tiny_model)) as cluster:
        await proven(cluster, known)
        assert trial in NARROW or await times_struck(cluster, trial.seam)
        is_bad = isinstance(trial.plant, Mapping) and trial.plant.get("corrupt")
        assert bool(await counted(cluster, "diptych_kv_blocks_total", outcome="corrupt")) == bool(is_bad)


@pytest.mark.anchor
@trials(FATAL)
async def test_answers_are_right_while_processes_die(
    trial: Trial, known: Known, tiny_model: Path, tmp_path: Path
) -> None:
    async with local_cluster(tmp_path, layout_of(trial, tiny_model)) as cluster:
        async with restarting(cluster) as deaths:
            seen = await Traffic(known.asked).run(cluster.gateway.address)
        await nothing_is_left(cluster)
    all_right(known, seen)
    assert deaths and all(name.startswith(trial.service) for name in deaths)


@asynccontextmanager
async def restarting(cluster: LocalCluster) -> AsyncIterator[list[str]]:
    """Whatever dies in the block is started again, and lives when it is left; gives the names of the dead."""
    deaths: list[str] = []
    busy = asyncio.Lock()

    async def watch() -> None:
        while True:
            name = (await cluster.until_death()).spec.name
            async with busy:
                deaths.append(name)
                # It may die again before it is known to be ready.
                with suppress(CommandError):
                    await cluster.restart(name)

    watching = asyncio.create_task(watch())
    try:
        yield deaths
    finally:
        async with busy:
            watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def test_every_seam_is_tried() -> None:
    assert {trial.seam for trial in (*LATE, *NARROW, *BAD, *FATAL)} == set(SEAMS)
