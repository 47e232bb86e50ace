"""The simulator beside a live cluster on this machine: fitted at one load, held against others.

    .venv/bin/python benchmarks/calibrate.py --json

Prefill runs on core 0, with every other process beside it, decode on core 1. As JSON:

    fit          what was fitted, and at which load
    loads        load -> mean_ttft, mean_itl -> live, simulated, error (a share of the live figure)
    worst        of mean_ttft and mean_itl: the largest error at a load that was not fitted

A run of the live part can be kept (`--save FILE`) and fitted again without it (`--observed FILE`).
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from calibration.fitting import fitted, predictions
from calibration.live import Plan, observed
from calibration.observed import Observed
from peers.field import Model
from peers.openai_client import ServerRefused
from services.cli.errors import CommandError

LOADS = (0.5, 0.3, 0.7)
"""The first is fitted."""


def main() -> int:
    asked = _parser().parse_args()
    try:
        seen = _read(asked.observed) if asked.observed else _live(asked)
    except (CommandError, ServerRefused, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    if asked.save:
        asked.save.write_text(json.dumps(seen.as_json()))
    if asked.live_only:
        return 0
    report = _report(seen)
    print(json.dumps(report, indent=2) if asked.json else _text(report))
    return 0


def _live(asked: argparse.Namespace) -> Observed:
    cache = Path(os.environ.get("DIPTYCH_CACHE") or "~/.cache/diptych").expanduser()
    with tempfile.TemporaryDirectory(prefix="diptych-calibrate-") as directory:
        model = Model.of(asked.model, cache).prepared
        return asyncio.run(observed(Plan(model, LOADS, asked.seconds, asked.seed, Path(directory), _say)))


def _read(path: Path) -> Observed:
    return Observed.from_json(json.loads(path.read_text()))


def _report(seen: Observed) -> dict[str, Any]:
    at = next(iter(seen.loads))
    fit = fitted(seen, at)
    loads = predictions(seen, fit)
    others = [row for load, row in loads.items() if load != f"{at:g}"]
    worst = {name: max((row[name]["error"] for row in others), key=abs) for name in ("mean_ttft", "mean_itl")}
    return {"fit": {"load": at, **asdict(fit)}, "loads": loads, "worst": worst}


def _text(report: dict[str, Any]) -> str:
    lines = [f"fitted at load {report['fit']['load']:g}: {report['fit']}"]
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
    parser.add_argument("--seconds", type=float, default=18.0, help="of each load (default 18)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", type=Path, help="where to keep what was seen")
    parser.add_argument("--observed", type=Path, help="what was kept; nothing is started")
    parser.add_argument("--live-only", action="store_true", help="fit nothing")
    return parser


def _say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
