"""The arguments of `diptych simulate`."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from services.cli.plain_errors import plainly
from services.cli.simulate import Scenario, show, simulated
from services.cli.terminal import Steps


def simulate(
    trace: Annotated[Path, typer.Argument(help="Mooncake's JSON lines or Azure's CSV, plain or gzipped.")],
    prefill: Annotated[int, typer.Option(min=0, help="Prefill workers; 0 takes the profile's.")] = 0,
    decode: Annotated[int, typer.Option(min=0, help="Decode workers; 0 takes the profile's.")] = 0,
    policy: Annotated[str, typer.Option(help="Who goes where; default: ours.")] = "",
    load: Annotated[float, typer.Option(min=0, help="Share of the measured capacity; 0 takes the usual one.")] = 0.0,
    profile: Annotated[str, typer.Option(help="Machines and sizes: a name, or a .toml file.")] = "",
    limit: Annotated[int, typer.Option(min=0, help="The first so many requests; 0 takes all.")] = 0,
    compare: Annotated[bool, typer.Option("--compare", help="All policies at several loads.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON value instead of text.")] = False,
) -> None:
    """Run the scheduler's own policy over a recorded trace, on virtual time and simulated workers."""
    with plainly():
        scenario = Scenario(trace, prefill, decode, policy, profile, load, limit, compare)
        with Steps(Console(stderr=True)) as steps:
            found = simulated(scenario, steps.doing)
        if as_json:
            typer.echo(json.dumps(found, indent=1))
        else:
            show(found, Console())
