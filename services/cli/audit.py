"""`diptych audit`: compares what all processes say they hold, and shows what is held and should not be."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from services.cli.asking import Asking
from services.cli.record import ClusterRecord, ServiceRecord
from services.cli.terminal import printable
from services.core.audit import GRACE, Snapshot, Stranded, held, seconds_between, stranded, suspects

LOOK_SECONDS = 0.5
WATCH_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What an audit came to."""

    look: Sequence[Snapshot]
    """The last one."""
    stranded: Sequence[Stranded]

    @property
    def silent(self) -> list[str]:
        """Processes that live and do not answer: they were not compared, and what only they know was let pass."""
        return [snapshot.name for snapshot in self.look if snapshot.is_silent]

    @property
    def num_held(self) -> int:
        return len(held(self.look))


async def audited(record: ClusterRecord, grace: float = GRACE) -> Finding:
    """The state of the cluster now. At once if all is known; else after looking again for up to `grace` seconds."""
    async with Asking(record.token) as asking:
        first = latest = await asking.look(_living(record))
        while suspects(latest) and seconds_between(first, latest) < grace:
            # There is no event for what a foreign process lets go of.
            await asyncio.sleep(LOOK_SECONDS)
            latest = await asking.look(_living(record))
        return Finding(latest, stranded(first, latest, grace))


async def watched(record: ClusterRecord, seconds: float = WATCH_SECONDS) -> AsyncIterator[Finding]:
    """For ever, one after every look but the first, which are `seconds` apart."""
    async with Asking(record.token) as asking:
        before = await asking.look(_living(record))
        while True:
            await asyncio.sleep(seconds)
            after = await asking.look(_living(record))
            yield Finding(after, stranded(before, after, min(seconds, GRACE)))
            before = after


def show(finding: Finding, console: Console) -> None:
    """For people."""
    if finding.stranded:
        console.print(table(finding.stranded))
    else:
        asked, things = len(finding.look) - len(finding.silent), finding.num_held
        who = "1 process holds" if asked == 1 else f"{asked} processes hold"
        console.print(Text(f"nothing is stranded; {who} {things} {'thing' if things == 1 else 'things'}"))
    if finding.silent:
        names = ", ".join(map(printable, finding.silent))
        theirs = "what it holds" if len(finding.silent) == 1 else "what they hold"
        console.print(Text(f"no answer from {names}: {theirs} was not compared", style="yellow"))


def table(found: Sequence[Stranded]) -> Table:
    """One line per thing."""
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("process", "holds", "for", "age", "owner", "last heard"):
        shown.add_column(heading, no_wrap=heading in ("process", "holds", "age"))
    shown.add_column("stranded, because")
    for one in found:
        thing = one.held
        what = f"{thing.count} {thing.kind}" + (f" ({thing.state})" if thing.state else "")
        request = f"{thing.request_id}/{thing.attempt}" if thing.request_id else "-"
        heard = f"{thing.last_heard:.1f} s ago" if thing.owner else "-"
        cells = (one.name, what, request, f"{thing.age:.1f} s", thing.owner or "-", heard, one.why)
        shown.add_row(*(Text(printable(cell)) for cell in cells), style="red")
    return shown


def as_json(finding: Finding) -> dict[str, object]:
    """For programs."""
    return {
        "asked": len(finding.look),
        "silent": finding.silent,
        "held": finding.num_held,
        "stranded": [_row(one) for one in finding.stranded],
    }


def _row(one: Stranded) -> dict[str, object]:
    thing = one.held
    return {
        "service": one.service,
        "name": one.name,
        "incarnation": one.incarnation,
        "kind": thing.kind,
        "request_id": thing.request_id,
        "attempt": thing.attempt,
        "count": thing.count,
        "state": thing.state,
        "age_seconds": round(thing.age, 3),
        "owner": thing.owner,
        "last_heard_seconds": round(thing.last_heard, 3),
        "why": one.why,
    }


def _living(record: ClusterRecord) -> list[ServiceRecord]:
    """A process that has ended holds nothing and knows nothing."""
    return [service for service in record.services if _is_alive(service.pid)]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
