"""`python -m services.simulation`: JSON lines on standard output, each with an `event`.

    progress   doing, done, of
    report     the report
    error      message, for people; nothing follows

Exits 0 with a report, 1 without.
"""

import argparse
import json
import sys
from pathlib import Path

from services.scheduler.policies import POLICIES
from services.simulation.comparison import LOADS, OURS, POLICY_NAMES, Setting, capacity, compared, simulated
from services.simulation.outcome import Figures, figures
from services.simulation.profile import ProfileError, load
from services.simulation.traces import TraceError, read, span
from services.simulation.verdict import split_pays, worse

REFERENCE_LOAD = 0.85
"""The load of a single run, and the one whose figures a comparison shows first."""
INTERRUPTED = 130


def main() -> int:
    asked = _parser().parse_args()
    if asked.policy not in POLICIES:
        _say({"event": "error", "message": f"no such policy; there are {', '.join(POLICIES)}"})
        return 1
    try:
        profile = load(asked.profile)
        trace = read(asked.trace, asked.limit)
    except (ProfileError, TraceError) as error:
        _say({"event": "error", "message": str(error)})
        return 1
    setting = Setting(profile, trace, asked.prefill or profile.pools[0], asked.decode or profile.pools[1])
    report: Figures = {
        "trace": asked.trace.name,
        "requests": len(trace),
        "trace_per_second": len(trace) / span(trace),
        "profile": profile.name,
        "prefill": setting.prefill,
        "decode": setting.decode,
        "objective": {"ttft_seconds": profile.objective.ttft, "itl_seconds": profile.objective.itl},
    }
    try:
        report |= _comparison(setting, asked.load) if asked.compare else _single(setting, asked)
    except KeyboardInterrupt:
        return INTERRUPTED
    _say({"event": "report", "report": report})
    return 0


def _single(setting: Setting, asked: argparse.Namespace) -> Figures:
    _progress("measuring the capacity")
    most = capacity(setting)
    _progress(f"load {asked.load:g}: {asked.policy}")
    run = simulated(setting, asked.policy, asked.load * most)
    rows = {asked.policy: figures(run, setting.profile.objective)}
    return {"capacity_per_second": most, "load": asked.load, "policies": rows}


def _comparison(setting: Setting, reference: float) -> Figures:
    """`policies` and `ratios` are those at the reference load."""
    policies = [name for name in POLICY_NAMES if name in POLICIES]
    found = compared(setting, sorted({*LOADS, reference}), policies, _progress)
    loads = found["loads"]
    assert isinstance(loads, list)
    at = next(each for each in loads if each["load"] == reference)
    return {
        **found,
        "load": reference,
        "policies": at["policies"],
        "ratios": at["ratios"],
        "ours_is_worse": worse(loads),
        "split_pays": split_pays(loads),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Runs the scheduler's policy over a trace on virtual time.")
    parser.add_argument("trace", type=Path)
    parser.add_argument("--profile", default="a800_llama3_70b")
    parser.add_argument("--prefill", type=int, default=0, help="0: the profile's")
    parser.add_argument("--decode", type=int, default=0, help="0: the profile's")
    parser.add_argument("--policy", default=OURS)
    parser.add_argument("--load", type=float, default=REFERENCE_LOAD, help="share of the measured capacity")
    parser.add_argument("--limit", type=int, default=0, help="the first so many requests; 0: all")
    parser.add_argument("--compare", action="store_true")
    return parser


def _progress(doing: str) -> None:
    _say({"event": "progress", "doing": doing, "done": 0, "of": 1})


def _say(event: Figures) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
