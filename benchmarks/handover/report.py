"""What the benchmark of transfers found, as JSON and as lines for people. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from handover.gap import Gap
from handover.moving import Measured
from handover.shapes import Shape

LIMITS = {
    "shm_over_memcpy": (">=", 0.7),
    "grpc_over_tcp": (">=", 0.4),
    "handover_gap_over_last_chunk": ("<=", 1.2),
    "handover_gap_over_ttft": ("<=", 0.03),
}
"""What each is to reach; of several shapes, ways or lengths the worst counts."""
NAMES = ("near_put", "near_get", "copies", "far_put", "far_get", "tcp", "grpc_bare")


@dataclass(frozen=True, slots=True)
class GapRun:
    """Requests of one length on one cluster."""

    tokens: int
    way: str
    rate: float
    """Of the throttled link, in bytes per second; 0 if it was not."""
    gaps: Sequence[Gap]


def as_json(moved: Mapping[Shape, Measured], runs: Sequence[GapRun]) -> dict[str, Any]:
    """See the names in `benchmarks/transfer.py`."""
    blocks = {shape.name: _shape(shape, found) for shape, found in moved.items()}
    gaps = [_run(run) for run in runs]
    ratios: dict[str, float] = {}
    for name in ("shm_over_memcpy", "grpc_over_tcp", "grpc_bare_over_tcp"):
        _worst(ratios, name, min, [each[name] for each in blocks.values()])
    for name in ("handover_gap_over_last_chunk", "handover_gap_over_ttft"):
        _worst(ratios, name, max, [each[name] for each in gaps if name in each])
    return {**ratios, "blocks": blocks, "gaps": gaps}


def as_text(report: Mapping[str, Any]) -> str:
    """The report as tables."""
    return "\n".join([*_block_lines(report["blocks"]), *_gap_lines(report["gaps"]), *_ratio_lines(report)])


def _worst(ratios: dict[str, float], name: str, worse: Any, found: Sequence[float]) -> None:
    if found:
        ratios[name] = worse(found)


def _shape(shape: Shape, found: Measured) -> dict[str, Any]:
    seconds = {name: median(found[name]) for name in NAMES}
    rates = {name: shape.bytes * (2 if name == "copies" else 1) / took / 1e9 for name, took in seconds.items()}
    return {
        "block_bytes": shape.format.block_bytes,
        "blocks": shape.blocks,
        "gigabytes_per_second": rates,
        "microseconds_per_block": {name: took / shape.blocks * 1e6 for name, took in seconds.items()},
        "spread": {name: max(took) / min(took) for name, took in found.items()},
        "shm_over_memcpy": seconds["copies"] / (seconds["near_put"] + seconds["near_get"]),
        "grpc_over_tcp": seconds["tcp"] / seconds["far_get"],
        "grpc_bare_over_tcp": seconds["tcp"] / seconds["grpc_bare"],
    }


def _run(run: GapRun) -> dict[str, Any]:
    found: dict[str, Any] = {
        "tokens": run.tokens,
        "way": run.way,
        "bytes_per_second": run.rate,
        "ttft": median(gap.ttft for gap in run.gaps),
        "added": median(gap.added for gap in run.gaps),
        "step": median(gap.step for gap in run.gaps),
        "requests": [
            {"added": gap.added, "ttft": gap.ttft, "ledger": gap.waiting, "chunk_bytes": gap.chunks} for gap in run.gaps
        ],
    }
    if run.rate:
        found["handover_gap_over_last_chunk"] = median(gap.added / (gap.chunks[-1] / run.rate) for gap in run.gaps)
    else:
        found["handover_gap_over_ttft"] = median(gap.added / gap.ttft for gap in run.gaps)
    return found


def _block_lines(blocks: Mapping[str, Any]) -> Iterator[str]:
    for name, found in blocks.items():
        yield f"\n{found['blocks']} blocks of {found['block_bytes'] / 1024:.0f} KiB ({name})"
        yield f"  {'':<12}{'GB/s':>8}{'µs a block':>12}{'slowest ÷ quickest':>20}"
        for what in NAMES:
            rate, each = found["gigabytes_per_second"][what], found["microseconds_per_block"][what]
            yield f"  {what:<12}{rate:>8.2f}{each:>12.0f}{found['spread'][what]:>20.2f}"


def _gap_lines(gaps: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for found in gaps:
        link = f"a link of {found['bytes_per_second'] / 1e6:.0f} MB/s" if found["bytes_per_second"] else "no throttle"
        yield f"\na prompt of {found['tokens']} tokens, {found['way']}, {link}"
        yield (
            f"  first token after {found['ttft']:.2f} s; the hand-over adds {found['added'] * 1e3:.1f} ms "
            f"to the second, whose step takes {found['step'] * 1e3:.1f} ms"
        )


def _ratio_lines(report: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    for name, (sign, limit) in LIMITS.items():
        if name in report:
            yield f"{name:<32}{report[name]:>8.3f}   to be {sign} {limit:g}"
    if "grpc_bare_over_tcp" in report:
        yield f"{'grpc_bare_over_tcp':<32}{report['grpc_bare_over_tcp']:>8.3f}   a gRPC stream that drops its bytes"
