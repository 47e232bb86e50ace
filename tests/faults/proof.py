"""What every fault test ends with: right answers, honest errors, and nothing held by anyone."""

import asyncio
import urllib.request
from collections.abc import Collection, Sequence

from prometheus_client.parser import text_string_to_metric_families

from services.cli.audit import audited
from services.cli.cluster import LocalCluster
from tests.faults.clusters import SESSION_SECONDS
from tests.faults.conftest import Known
from tests.faults.traffic import Seen, Traffic, faults_in
from tests.support.asking import CALM_SECONDS, living, until_calm, used_blocks


async def nothing_is_left(cluster: LocalCluster) -> None:
    """Nobody holds anything for a request, and no block is in use; a process that hung may be noticed only now."""
    await until_calm(cluster, CALM_SECONDS + SESSION_SECONDS)
    used = {"": 1}
    try:
        # A page that a lost process may write stays in use until that process is known to be quiet.
        async with asyncio.timeout(CALM_SECONDS):
            while used := {name: blocks for name, blocks in (await used_blocks(cluster)).items() if blocks}:
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"blocks in use though nobody asks for anything: {used}") from None
    assert not (await audited(cluster.record())).stranded


def all_right(known: Known, seen: Sequence[Seen], errors: Collection[str] = ()) -> None:
    """No wrong token, no hang, no error but the ones that are promised."""
    wrong = faults_in(known.asked, seen, known.expected, errors)
    assert not wrong, "\n".join([f"{len(wrong)} of {len(seen)} are wrong:", *wrong[:20]])


async def proven(cluster: LocalCluster, known: Known, errors: Collection[str] = ()) -> list[Seen]:
    """Sends all requests; they are answered right and leave nothing."""
    seen = await Traffic(known.asked).run(cluster.gateway.address)
    await nothing_is_left(cluster)
    all_right(known, seen, errors)
    return seen


async def times_struck(cluster: LocalCluster, seam: str) -> float:
    """How often what was planted at `seam` has struck: a test in which nothing happens proves nothing."""
    return await counted(cluster, "diptych_faults_total", seam=seam)


async def counted(cluster: LocalCluster, counter: str, **labels: str) -> float:
    """A counter's sum over all processes that live and all labels that are not named."""
    pages = [cluster.announcement(name).metrics_address for name in living(cluster)]
    texts = await asyncio.gather(*(asyncio.to_thread(_read, address) for address in pages))
    samples = (sample for text in texts for family in text_string_to_metric_families(text) for sample in family.samples)
    return sum(s.value for s in samples if s.name == counter and labels.items() <= s.labels.items())


def _read(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as page:
        text: str = page.read().decode()
    return text
