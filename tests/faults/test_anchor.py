"""Split output == unsplit output, token for token: two of each, small pools, shared prefixes, draws, stops, leavers."""

from pathlib import Path
from typing import Literal

import pytest

from services.modelfiles.prepared import PreparedModel
from tests.faults.clusters import Shape, layout
from tests.faults.conftest import Known
from tests.faults.expected import Alone
from tests.faults.proof import all_right, counted, nothing_is_left, proven
from tests.faults.trace import trace
from tests.faults.traffic import traffic_beside
from tests.support.local_cluster import local_cluster

SHORT = 40
MANY_BLOCKS = 500
"""Of about 3 300; the others were in decode's own cache, or found no room in a store."""


@pytest.mark.anchor
@pytest.mark.parametrize("way", ["near", "far"])
async def test_two_hundred_random_requests_are_answered_as_the_engine_by_itself_answers_them(
    way: Literal["near", "far"], known: Known, tiny_model: Path, tmp_path: Path
) -> None:
    async with local_cluster(tmp_path, layout(tiny_model, Shape(way=way))) as cluster:
        await proven(cluster, known)
        assert await counted(cluster, "diptych_kv_blocks_total", way=way, outcome="landed") > MANY_BLOCKS
        assert await counted(cluster, "diptych_kv_blocks_total", outcome="corrupt") == 0


async def test_forty_requests_are_right_and_forty_more_while_a_store_and_a_decode_worker_are_killed(
    known: Known, tiny_model: Path, tmp_path: Path
) -> None:
    """The short form."""
    async with local_cluster(tmp_path, layout(tiny_model)) as cluster:
        await proven(cluster, known.part(0, SHORT))
        later = known.part(SHORT, 2 * SHORT)
        async with traffic_beside(cluster, later.asked) as traffic:
            await traffic.until(SHORT // 4)
            cluster.processes["kvstore-0"].kill()
            await traffic.until(SHORT // 2)
            cluster.processes["decode-0"].kill()
        await nothing_is_left(cluster)
    all_right(later, traffic.in_order())


@pytest.mark.anchor
@pytest.mark.timeout(600)
async def test_twenty_requests_on_the_default_model_are_right(smollm2: PreparedModel, tmp_path: Path) -> None:
    alone = Alone(smollm2)
    asked = alone.given_stops(trace(20, smollm2.config.vocab, seed=135))
    known = Known(asked, [alone.answer(one) for one in asked])
    async with local_cluster(tmp_path, layout(smollm2.directory, Shape(max_running=4))) as cluster:
        await proven(cluster, known)
