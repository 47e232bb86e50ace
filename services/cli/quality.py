"""`diptych model check-quality`: runs the engine's own check as a process and shows what it found.

The command line has no tensors: the check prints JSON lines (see `services.engine.quality.__main__`).
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from services.cli.errors import CommandError
from services.cli.terminal import printable

CHECK = "services.engine.quality"

Json = dict[str, Any]
Doing = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Choices:
    """What to check of a model."""

    prompts: Path
    weights: str
    kv_dtype: str
    threads: int
    limit: int
    """Prompts at most; 0 takes all."""

    def command(self, model: Path) -> list[str]:
        options = {
            "weights": self.weights,
            "kv-dtype": self.kv_dtype,
            "threads": str(self.threads),
            "limit": str(self.limit),
        }
        flags = [part for name, value in options.items() for part in (f"--{name}", value)]
        return [sys.executable, "-m", CHECK, *flags, "--", str(model), str(self.prompts)]


def checked(model: Path, choices: Choices, doing: Doing) -> Json:
    """The report of a check. Raises CommandError if there is none."""
    with subprocess.Popen(choices.command(model), stdout=subprocess.PIPE, text=True, encoding="utf-8") as process:
        try:
            assert process.stdout is not None
            report = report_of(process.stdout, doing)
        finally:
            process.kill()
    if report is None:
        raise CommandError("the check ended without a report; a worker's packages must be installed where it runs")
    return report


def report_of(lines: Iterator[str], doing: Doing) -> Json | None:
    """What a check's lines say; None if they end too early. Raises CommandError with the check's own words."""
    for line in lines:
        event = json.loads(line)
        if event["event"] == "error":
            raise CommandError(event["message"])
        if event["event"] == "report":
            report: Json = event["report"]
            return report
        share = f" ({event['done']} of {event['of']})" if event["of"] > 1 else ""
        doing(f"{event['doing']}{share}")
    return None


def show(found: Json, console: Console) -> None:
    """The report as tables, and the verdict."""
    console.print(
        f"{found['model']}, {found['engine']} engine, weights {found['weights']}, KV {found['kv_dtype']}, "
        "against float32",
        highlight=False,
    )
    console.print(_table("kind", [*found["kinds"], {**found, "kind": "all"}], lambda row: row["kind"]))
    console.print()
    console.print(_table("worst prompts", found["worst"], lambda row: f"{row['kind']}: {row['text']}"))
    console.print()
    for form in found["matrices"]:
        text = f"{form['count']} matrices in {form['form']}: usual error {_shown(form['usual'], '.2%')}"
        console.print(f"{text}, largest {_shown(form['largest'], '.2%')} ({form['at']})", highlight=False)
    for failure in found["failures"]:
        console.print(Text(failure, style="red"), soft_wrap=True)
    if not found["failures"]:
        console.print(Text("nothing damaged, and close enough to float32", style="green"))


def _table(heading: str, rows: Sequence[Json], name: Callable[[Json], str]) -> Table:
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    shown.add_column(heading)
    for column in ("prompts", "tokens", "perplexity", "÷ float32's", "mean KL", "max KL", "agreement"):
        shown.add_column(column, justify="right")
    for row in rows:
        perplexity, divergence = row["perplexity"], row["kl"]
        shown.add_row(
            Text(printable(name(row))),
            str(row["prompts"]),
            str(row["tokens"]),
            _shown(perplexity["served"], ".2f"),
            _shown(perplexity["ratio"], ".4f"),
            _shown(divergence["mean"], ".1e"),
            _shown(divergence["max"], ".1e"),
            _shown(row["agreement"], ".1%"),
        )
    return shown


def _shown(value: float | None, form: str) -> str:
    return "not a number" if value is None else format(value, form)
