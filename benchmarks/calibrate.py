"""The simulator beside a live cluster on this machine: fitted at one load, held against others.

    .venv/bin/python benchmarks/calibrate.py --json

Prefill runs on core 0, with every other process beside it, decode on core 1. As JSON:

    fits         what was fitted, of each run, and at which load
    loads        load -> mean_ttft, mean_itl -> live, simulated, error (a share of the live figure)
    worst        of mean_ttft and mean_itl: the largest error at a load that was not fitted

The live part of a run, under two minutes, can be kept (`--live-only --seed N --save FILE`). Of several kept runs
(`--observed FILE ...`) each is fitted by itself, and the figures are their medians.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from calibration.fitting import fitted, predictions
from calibration.live import Plan, observed
from calibration.observed import Observed
from calibration.repeated import medians, worst
from peers.field import Model
from peers.openai_client import ServerRefused
from services.cli.errors import CommandError

LOADS = (0.5, 0.3, 0.7)
"""The first is fitted."""


def main() -> int:
    asked = _parser().parse_args()
    try:
        runs = [_read(path) for path in asked.observed] or [_live(asked)]
    except (CommandError, ServerRefused, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    if asked.save:
        asked.save.write_text(json.dumps(runs[0].as_json()))
    if asked.live_only:
        return 0
    report = _report(runs)
    print(json.dumps(report, indent=2) if asked.json else _text(report))
    return 0


def _live(asked: argparse.Namespace) -> Observed:
    cache = Path(os.environ.get("DIPTYCH_CACHE") or "~/.cache/diptych").expanduser()
    with tempfile.TemporaryDirectory(prefix="diptych-calibrate-") as directory:
        model = Model.of(asked.model, cache).prepared
        return asyncio.run(observed(Plan(model, LOADS, asked.seconds, asked.seed, Path(directory), _say)))


def _read(path: Path) -> Observed:
    return Observed.from_json(json.loads(path.read_text()))


def _report(runs: Sequence[Observed]) -> dict[str, Any]:
    at = next(iter(runs[0].loads))
    fits = [fitted(seen, at) for seen in runs]
    loads = medians([predictions(seen, fit) for seen, fit in zip(runs, fits, strict=True)])
    return {
        "fits": [{"load": at, **asdict(fit)} for fit in fits],
        "loads": loads,
        "worst": worst(loads, f"{at:g}"),
    }


def _text(report: dict[str, Any]) -> str:
    lines = [f"fitted: {fit}" for fit in report["fits"]]
    for load, row in report["loads"].items():
        for name in ("mean_ttft", "mean_itl"):
            live, simulated, error = (row[name][key] for key in ("live", "simulated", "error"))
            lines.append(
                f"load {load} {name}: live {live * 1000:.1f} ms, simulated {simulated * 1000:.1f} ms, {error:+.1%}"
            )
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    parser.add_argument("--model", default="smollm2", help="smollm2, or the path of a GGUF file")
    parser.add_argument(
        "--seconds", type=float, default=18.0, help="of the load that is fitted (default 18); others as many requests"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", type=Path, help="where to keep what was seen")
    parser.add_argument("--observed", type=Path, nargs="+", default=[], help="what was kept; nothing is started")
    parser.add_argument("--live-only", action="store_true", help="fit nothing")
    return parser


def _say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
