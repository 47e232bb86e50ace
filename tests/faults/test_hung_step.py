"""An engine step that never ends: the worker gives itself up, and what it was writing goes on elsewhere."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.clusters import SMALL, layout
from tests.faults.conftest import Known
from tests.faults.proof import all_right, nothing_is_left
from tests.faults.traffic import traffic_beside
from tests.support.local_cluster import local_cluster

HUNG_SECONDS = 1.0
FOR_EVER = {"delay": 3600.0, "after": 40, "times": 1}


@pytest.mark.anchor
@pytest.mark.parametrize("service", ["prefill", "decode"])
async def test_a_step_that_hangs_costs_no_answer(service: str, known: Known, tiny_model: Path, tmp_path: Path) -> None:
    """Of two workers, one hangs in the middle and ends by itself."""
    shaped = layout(tiny_model, SMALL)
    name = f"{service}-0"
    fields = dict(shaped.fields)
    planted = layout(tiny_model, SMALL, {service: {f"{service}.step": FOR_EVER}}).fields[service]["faults"]
    fields[name] = {"faults": planted, "hung_step_seconds": f"{HUNG_SECONDS:g}"}
    async with local_cluster(tmp_path, replace(shaped, fields=fields)) as cluster:
        async with traffic_beside(cluster, known.asked) as traffic:
            assert (await cluster.until_death()).spec.name == name
            await traffic.until(1)
            await cluster.restart(name)
        await nothing_is_left(cluster)
    assert "does not end" in (tmp_path / f"{name}.log").read_text()
    all_right(known, traffic.in_order())
