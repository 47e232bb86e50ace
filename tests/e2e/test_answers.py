"""The answers are right: equal to a reference that is not ours, and bit for bit the same split and unsplit.

The reference computes in float32, so it judges a cluster that does, too: cache and weights in float32. Split and
unsplit are compared as they serve by default; how close that is to float32 is in `test_logits` and `docs/quality.md`.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from services.cli.cluster import LocalCluster
from services.cli.layout import ClusterLayout
from services.modelfiles.prepared import PreparedModel
from tests.e2e.conftest import LIGHT
from tests.support.asking import Told, ask_all, request_for, until_calm, used_blocks
from tests.support.local_cluster import local_cluster
from tests.support.prompts import prompts
from tests.support.reference import Reference, Verdict

pytestmark = pytest.mark.asyncio(loop_scope="session")

TOKENS = 48
TEMPERATURE = 0.8


@pytest.fixture(scope="module")
def thirty(smollm2: PreparedModel) -> list[list[int]]:
    made = prompts(smollm2.tokenizer())
    assert len(made) == 30 and min(map(len, made)) == 1 and max(map(len, made)) == 1500
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def exact(smollm2: PreparedModel, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    """Split, with nothing rounded."""
    exactly = {"kv_dtype": "float32", "weights": "float32"}
    layout = ClusterLayout(model=smollm2.directory, pythons=LIGHT, engine=exactly)
    async with local_cluster(tmp_path_factory.mktemp("exact"), layout) as cluster:
        yield cluster


async def answered(cluster: LocalCluster, thirty: list[list[int]], kind: str) -> list[Told]:
    requests = [request_for(prompt, TOKENS) for prompt in thirty]
    if kind == "seeded":
        requests = [
            request_for(prompt, TOKENS, temperature=TEMPERATURE, seed=seed) for seed, prompt in enumerate(thirty)
        ]
    told = await ask_all(cluster, requests)
    assert all(len(each.ids) == TOKENS for each in told)
    await until_calm(cluster)
    return told


@pytest.mark.timeout(600)
async def test_greedy_answers_equal_the_reference(
    exact: LocalCluster, thirty: list[list[int]], reference: Reference
) -> None:
    verdict = Verdict()
    for number, (prompt, told) in enumerate(zip(thirty, await answered(exact, thirty, "greedy"), strict=True)):
        reference.judge_greedy(prompt, told.ids, verdict, f"prompt {number}")
    assert verdict.tokens == 30 * TOKENS
    verdict.check()


@pytest.mark.timeout(600)
async def test_seeded_answers_equal_the_references_distribution_at_the_same_draw(
    exact: LocalCluster, thirty: list[list[int]], reference: Reference
) -> None:
    verdict = Verdict()
    for seed, (prompt, told) in enumerate(zip(thirty, await answered(exact, thirty, "seeded"), strict=True)):
        reference.judge_draws(prompt, told.ids, (TEMPERATURE, seed), verdict, f"prompt {seed}")
    verdict.check()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["greedy", pytest.param("seeded", marks=pytest.mark.drill)])
async def test_unsplit_answers_equal_split_ones(
    kind: str, split: LocalCluster, smollm2: PreparedModel, thirty: list[list[int]], tmp_path: Path
) -> None:
    together = await answered(split, thirty, kind)
    layout = ClusterLayout(model=smollm2.directory, prefill=0, pythons=LIGHT)
    async with local_cluster(tmp_path, layout) as unsplit:
        apart = await answered(unsplit, thirty, kind)
    assert [told.ids for told in together] == [told.ids for told in apart]


async def test_nothing_stays_in_use_after_all_this(split: LocalCluster) -> None:
    assert set((await used_blocks(split)).values()) == {0}
