"""What the benchmark of serving found, as JSON and as lines for people. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from peers.streams import PERCENTS, gap_percentiles
from peers.trace import Measures, medians
from peers.workloads import WORKLOADS

ENGINE = "engine only"
SPLIT = "split"
UNSPLIT = "unsplit"
OURS = (SPLIT, UNSPLIT, ENGINE)


@dataclass(frozen=True, slots=True)
class Served:
    """Everything that was measured."""

    runs: Mapping[str, Mapping[str, Sequence[Measures]]]
    """Server to workload to repetitions; `ENGINE` is our engine without a server."""
    undisturbed: Mapping[str, Sequence[float]]
    """Server to gaps of running streams by themselves, in seconds."""
    disturbed: Mapping[str, Sequence[float]]
    """Server to gaps while a long prompt arrives."""
    long_ttft: Mapping[str, Sequence[float]]
    """Server to times to that prompt's first token."""
    settings: Mapping[str, Any]


def served_json(found: Served) -> dict[str, Any]:
    """See the names in `benchmarks/serving.py`."""
    middle = {who: {name: medians(runs) for name, runs in by.items()} for who, by in found.runs.items()}
    return {
        "medians": middle,
        "ratios": {
            f"{workload}_{measure}": {
                who: middle[UNSPLIT][workload][measure] / by[workload][measure]
                for who, by in middle.items()
                if who not in OURS and workload in by
            }
            for workload in middle[UNSPLIT]
            for measure in ("tokens_per_second", "ttft")
        },
        "serving_share": _over(middle, UNSPLIT, ENGINE),
        "split_over_unsplit": _over(middle, SPLIT, UNSPLIT),
        "arrival": {who: _arrival(found, who) for who in found.disturbed},
        "settings": found.settings,
    }


def served_text(report: Mapping[str, Any]) -> str:
    """The report as tables."""
    return "\n".join([*_workload_lines(report), *_share_lines(report), *_arrival_lines(report)])


def _over(middle: Mapping[str, Mapping[str, Measures]], one: str, other: str) -> dict[str, float]:
    """Output rates by workload, `one` ÷ `other`."""
    return {
        name: middle[one][name]["tokens_per_second"] / middle[other][name]["tokens_per_second"]
        for name in middle[one]
        if name in middle[other]
    }


def _arrival(found: Served, who: str) -> dict[str, Any]:
    calm, busy = gap_percentiles(found.undisturbed[who]), gap_percentiles(found.disturbed[who])
    return {
        "undisturbed": calm,
        "disturbed": busy,
        "p99_ratio": busy["p99"] / calm["p99"],
        "long_prompt_ttft": sorted(found.long_ttft[who])[len(found.long_ttft[who]) // 2],
    }


def _workload_lines(report: Mapping[str, Any]) -> Iterator[str]:
    for name in [name for name in WORKLOADS if any(name in by for by in report["medians"].values())]:
        yield f"\n{name}: {WORKLOADS[name].text}, through HTTP"
        yield f"  {'':<24}{'tokens/s':>10}{'TTFT s':>9}{'ITL ms':>9}{'p99 ms':>9}"
        for who, by in report["medians"].items():
            if name in by:
                yield f"  {who:<24}{_row(by[name])}"


def _row(found: Measures) -> str:
    gaps = "".join(f"{found[at] * 1e3:>9.1f}" if at in found else f"{'–':>9}" for at in ("itl_median", "itl_p99"))
    return f"{found['tokens_per_second']:>10.1f}{found['ttft']:>9.2f}{gaps}"


def _share_lines(report: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    for name, share in report["serving_share"].items():
        yield f"{name}: unsplit serving gives {share:.2f} of what the engine alone does"
    for name, share in report["split_over_unsplit"].items():
        word = "gains" if share > 1 else "costs"
        yield f"{name}: splitting {word} {abs(share - 1):.0%} of the output on this machine"


def _arrival_lines(report: Mapping[str, Any]) -> Iterator[str]:
    names = [f"p{percent}" for percent in PERCENTS]
    yield "\ngaps of running streams (ms), by themselves and while a prompt of 1 500 tokens arrives"
    yield f"  {'':<24}" + "".join(f"{name:>9}" for name in names) + "".join(f"{name:>9}" for name in names)
    for who, found in report["arrival"].items():
        numbers = [found[when][name] * 1e3 for when in ("undisturbed", "disturbed") for name in names]
        ratio, ttft = found["p99_ratio"], found["long_prompt_ttft"]
        shown = "".join(f"{number:>9.1f}" for number in numbers)
        yield f"  {who:<24}{shown}   p99 × {ratio:.2f}; the long prompt waits {ttft:.1f} s"
