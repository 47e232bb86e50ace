"""The answers are right: equal to a reference that is not ours, and the same split and unsplit."""

from pathlib import Path

import pytest

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


@pytest.fixture(scope="module")
def answers() -> dict[str, list[Told]]:
    """Greedy and seeded answers of the split cluster, for the tests that compare with them."""
    return {}


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
    split: LocalCluster, thirty: list[list[int]], reference: Reference, answers: dict[str, list[Told]]
) -> None:
    answers["greedy"] = await answered(split, thirty, "greedy")
    verdict = Verdict()
    for number, (prompt, told) in enumerate(zip(thirty, answers["greedy"], strict=True)):
        reference.judge_greedy(prompt, told.ids, verdict, f"prompt {number}")
    assert verdict.tokens == 30 * TOKENS
    verdict.check()


@pytest.mark.timeout(600)
async def test_seeded_answers_equal_the_references_distribution_at_the_same_draw(
    split: LocalCluster, thirty: list[list[int]], reference: Reference, answers: dict[str, list[Told]]
) -> None:
    answers["seeded"] = await answered(split, thirty, "seeded")
    verdict = Verdict()
    for seed, (prompt, told) in enumerate(zip(thirty, answers["seeded"], strict=True)):
        reference.judge_draws(prompt, told.ids, (TEMPERATURE, seed), verdict, f"prompt {seed}")
    verdict.check()


@pytest.mark.timeout(900)
async def test_unsplit_answers_equal_split_ones(
    smollm2: PreparedModel,
    thirty: list[list[int]],
    reference: Reference,
    answers: dict[str, list[Told]],
    tmp_path: Path,
) -> None:
    """Token for token; where they part, the reference must call it a tie."""
    verdict = Verdict()
    async with local_cluster(tmp_path, ClusterLayout(model=smollm2.directory, prefill=0, pythons=LIGHT)) as unsplit:
        for kind in ("greedy", "seeded"):
            told = await answered(unsplit, thirty, kind)
            for number, (prompt, one, other) in enumerate(zip(thirty, answers[kind], told, strict=True)):
                verdict.tokens += TOKENS
                if one.ids == other.ids:
                    continue
                before = len(verdict.ties)
                for ids, way in ((one.ids, "split"), (other.ids, "unsplit")):
                    name = f"{kind} {number} {way}"
                    if kind == "greedy":
                        reference.judge_greedy(prompt, ids, verdict, name)
                    else:
                        reference.judge_draws(prompt, ids, (TEMPERATURE, number), verdict, name)
                assert verdict.wrong or len(verdict.ties) > before, f"{kind} {number}: they part without a tie"
    verdict.check()


async def test_nothing_stays_in_use_after_all_this(split: LocalCluster) -> None:
    assert set((await used_blocks(split)).values()) == {0}
