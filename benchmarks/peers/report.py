"""What a run of the benchmark found, as JSON and as lines for people. Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from peers.limits import Machine, prefill_flops
from peers.ratios import COMPARED, LOWER_IS_BETTER, QUALITY_LIMIT, best_peer, is_comparable, ratios
from peers.trace import Measures, medians
from peers.workloads import WORKLOADS
from services.core.model_config import ModelConfig

OURS = "diptych"
NOT_SHARES = ("step_seconds", "rows")
"""Of a profile."""

Runs = Mapping[str, Mapping[str, Sequence[Measures]]]
"""Contender to workload to its repetitions."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything that was measured."""

    config: ModelConfig
    runs: Runs
    machine: Sequence[Machine]
    """A sample a repetition, from around our turn."""
    kl: Mapping[str, float]
    """Mean KL to float32 in nats per token, by contender."""
    settings: Mapping[str, Any]
    ours: Mapping[str, Any]
    """`profile` and `bookkeeping_share`, as our contender tells them."""
    weight_bytes: int
    """That one of our decode steps reads."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Optional peers that did not run, and why."""


def as_json(found: Findings) -> dict[str, Any]:
    """See the names in `benchmarks/engine.py`."""
    middle = {who: {name: medians(runs) for name, runs in by.items()} for who, by in found.runs.items()}
    table = ratios(OURS, middle, found.kl)
    machine = Machine.median(list(found.machine))
    return {
        "ratios": table,
        "best_peer": {
            name: {"peer": peer, "ratio": by_peer[peer]}
            for name, by_peer in table.items()
            if (peer := best_peer(name, by_peer)) is not None
        },
        "share_of_limit": _shares(found),
        "bookkeeping_share": found.ours["bookkeeping_share"],
        "profile": found.ours["profile"],
        "medians": middle,
        "spread": {who: {name: _spread(runs) for name, runs in by.items()} for who, by in found.runs.items()},
        "quality": {
            who: {
                "mean_kl": kl if math.isfinite(kl) else None,
                "limit": QUALITY_LIMIT,
                "comparable": is_comparable(kl),
            }
            for who, kl in found.kl.items()
        },
        "limits": {
            "read_bytes_per_second": machine.read_bytes_per_second,
            "flops_per_second": machine.flops_per_second,
            "whole_per_second": machine.whole_per_second,
            "weight_bytes": found.weight_bytes,
        },
        "settings": found.settings,
        "missing": found.missing,
    }


def as_text(report: Mapping[str, Any]) -> str:
    """The report as tables."""
    return "\n".join([*_workload_lines(report), *_best_lines(report), *_limit_lines(report), *_missing_lines(report)])


def _shares(found: Findings) -> dict[str, float]:
    """Medians of each repetition's own share, for the machine's limits change from one to the next."""
    shares, own = {}, found.runs[OURS]
    if "W2" in own:
        pairs = zip(found.machine, own["W2"], strict=True)
        shares["W2"] = median(at.decode_share(found.weight_bytes, run["tokens_per_second"]) for at, run in pairs)
    if "W3" in own:
        flops = prefill_flops(found.config, WORKLOADS["W3"].prompt_tokens)
        pairs = zip(found.machine, own["W3"], strict=True)
        shares["W3"] = median(at.prefill_share(flops, run["ttft"]) for at, run in pairs)
    return shares


def _spread(runs: Sequence[Measures]) -> dict[str, float]:
    rates = [run["tokens_per_second"] for run in runs]
    return {"least": min(rates), "most": max(rates), "runs": len(rates)}


def _workload_lines(report: Mapping[str, Any]) -> Iterator[str]:
    names = [name for name in WORKLOADS if any(name in by for by in report["medians"].values())]
    for name in names:
        yield f"\n{name}: {WORKLOADS[name].text}"
        yield f"  {'':<36}{'tokens/s':>10}{'ours ÷':>9}{'TTFT s':>9}{'ITL ms':>9}{'p99 ms':>9}{'mean KL':>10}"
        by = {who: measures[name] for who, measures in report["medians"].items() if name in measures}
        for who in sorted(by, key=lambda contender: -by[contender]["tokens_per_second"]):
            yield f"  {who:<36}{_row(report, name, who, by[who])}"


def _row(report: Mapping[str, Any], workload: str, who: str, found: Measures) -> str:
    ratio = report["ratios"].get(f"{workload}_tokens_per_second", {}).get(who)
    kl = report["quality"].get(who, {}).get("mean_kl")
    return (
        f"{found['tokens_per_second']:>10.1f}"
        f"{_or_dash(ratio, '.2f'):>9}"
        f"{_or_dash(found.get('ttft'), '.2f'):>9}"
        f"{_or_dash(_milli(found.get('itl_median')), '.1f'):>9}"
        f"{_or_dash(_milli(found.get('itl_p99')), '.1f'):>9}"
        f"{_or_dash(kl, '.2g'):>10}"
    )


def _best_lines(report: Mapping[str, Any]) -> Iterator[str]:
    yield f"\nours ÷ the best peer of comparable quality (mean KL to float32 at most {QUALITY_LIMIT:g})"
    for name, best in report["best_peer"].items():
        better = "lower is better" if COMPARED[name][1] in LOWER_IS_BETTER else "higher is better"
        yield f"  {name:<24}{best['ratio']:>6.2f}  {best['peer']} ({better})"


def _limit_lines(report: Mapping[str, Any]) -> Iterator[str]:
    limits, shares = report["limits"], report["share_of_limit"]
    yield (
        f"\nthe machine reads {limits['read_bytes_per_second'] / 1e9:.1f} GB/s and multiplies "
        f"{limits['flops_per_second'] / 1e9:.0f} GFLOP/s in float32, "
        f"{limits['whole_per_second'] / 1e9:.0f} G/s in whole numbers of 16 bits; "
        f"a step of ours reads {limits['weight_bytes'] / 1e6:.0f} MB"
    )
    for name, share in shares.items():
        yield f"  {name} reaches {share:.0%} of that limit"
    profile = report["profile"]
    phases = {name: share for name, share in profile.items() if name not in NOT_SHARES}
    yield f"a decode step of {profile['rows']} rows takes {profile['step_seconds'] * 1e3:.1f} ms:"
    yield "  " + ", ".join(f"{name} {share:.1%}" for name, share in phases.items())


def _missing_lines(report: Mapping[str, Any]) -> Iterator[str]:
    for who, why in report["missing"].items():
        yield f"\nnot run: {who}: {why}"


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _milli(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
