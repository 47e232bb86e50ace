"""`diptych simulate`: runs the simulator as a process and shows what it found (see `services.simulation.__main__`)."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

from rich.console import Console
from rich.table import Table

from services.cli.errors import CommandError
from services.cli.quality import Doing, report_of

SIMULATION = "services.simulation"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scenario:
    """What to simulate; 0 or empty leaves it to the simulator."""

    trace: Path
    prefill: int = 0
    decode: int = 0
    policy: str = ""
    profile: str = ""
    load: float = 0.0
    limit: int = 0
    compares: bool = False

    def command(self) -> list[str]:
        options: Mapping[str, object] = {
            "prefill": self.prefill,
            "decode": self.decode,
            "policy": self.policy,
            "profile": self.profile,
            "load": self.load,
            "limit": self.limit,
        }
        flags = [f"--{name}={value}" for name, value in options.items() if value]
        if self.compares:
            flags.append("--compare")
        return [sys.executable, "-m", SIMULATION, *flags, "--", str(self.trace)]


def simulated(scenario: Scenario, doing: Doing) -> Json:
    """The report. Raises CommandError if there is none."""
    with Popen(scenario.command(), stdout=PIPE, text=True, encoding="utf-8") as process:
        try:
            assert process.stdout is not None
            report = report_of(process.stdout, doing)
        finally:
            process.kill()
    if report is None:
        raise CommandError("the simulation ended without a report")
    return report


def show(found: Json, console: Console) -> None:
    """A table for each load, and what they say."""
    console.print(
        f"{found['requests']} requests of {found['trace']} on {found['prefill']} prefill and {found['decode']} decode "
        f"workers of profile {found['profile']}; capacity {found['capacity_per_second']:.2f} requests/s",
        highlight=False,
    )
    for at in found.get("loads") or [found]:
        console.print()
        console.print(_table(at, found["objective"]))
    for figure, loads in found.get("split_pays", {}).items():
        pays, does_not = (", ".join(f"{each:g}" for each in loads[key]) for key in ("pays_at", "does_not_pay_at"))
        console.print(f"split against the best unsplit, {figure}: pays at {pays or '-'}, not at {does_not or '-'}")
    for each in found.get("ours_is_worse", []):
        console.print(f"ours is worse than {each['policy']} at load {each['load']:g} in {each['figure']}", style="red")


def _table(at: Json, objective: Json) -> Table:
    goal = f"goodput (TTFT {objective['ttft_seconds']:g} s, ITL {objective['itl_seconds']:g} s)"
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    shown.add_column(f"load {at['load']:g}")
    for column in ("mean TTFT", "p50", "p99", "÷ ours", "published", "mean ITL", "gap p99", goal, "cache hits"):
        shown.add_column(column, justify="right")
    for policy, row in at["policies"].items():
        ratio = at.get("ratios", {}).get(policy, {})
        shown.add_row(
            policy,
            f"{row['mean_ttft_seconds']:.3g} s",
            f"{row['ttft_percentiles']['p50']:.3g} s",
            f"{row['ttft_percentiles']['p99']:.3g} s",
            f"{ratio['mean_ttft_ratio']:.2f}" if ratio else "",
            f"{ratio['published']:.2f}" if ratio.get("published") else "",
            f"{row['mean_itl_seconds'] * 1000:.3g} ms",
            f"{row['gap_percentiles']['p99'] * 1000:.3g} ms",
            f"{row['goodput']:.2f}/s",
            f"{row['cache_hit_rate']:.1%}",
        )
    return shown
