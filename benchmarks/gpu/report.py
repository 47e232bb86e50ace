"""What was measured, as a table and as JSON. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpu.work import Limits, Work

_COLUMNS = f"{'kernel':<52}{'µs':>9}{'GB/s':>8}{'TFLOP/s':>9}{'of limit':>10}{'peer ÷ ours':>13}  peer"


@dataclass(frozen=True, slots=True)
class Result:
    """One contest, in seconds."""

    name: str
    work: Work
    ours: float
    theirs: float
    peer: str

    def share_of(self, limits: Limits) -> float:
        """1 is a kernel that cannot be faster on this device."""
        return limits.seconds(self.work) / self.ours


def as_json(device: str, limits: Limits, results: Sequence[Result]) -> dict[str, object]:
    return {
        "device": device,
        "limits": {"bytes_per_second": limits.bandwidth, "flops_per_second": limits.flops},
        "kernels": {
            result.name: {
                "seconds": result.ours,
                "bytes_per_second": result.work.bytes / result.ours,
                "flops_per_second": result.work.flops / result.ours,
                "share_of_limit": result.share_of(limits),
                "peer": result.peer,
                "peer_seconds": result.theirs,
                "speedup": result.theirs / result.ours,
            }
            for result in results
        },
    }


def as_text(device: str, limits: Limits, results: Sequence[Result]) -> str:
    head = f"{device}: copies {limits.bandwidth / 1e9:.0f} GB/s, multiplies {limits.flops / 1e12:.0f} TFLOP/s (float16)"
    return "\n".join([head, "", _COLUMNS, *(_line(result, limits) for result in results)])


def _line(result: Result, limits: Limits) -> str:
    return (
        f"{result.name:<52}{result.ours * 1e6:>9.1f}{result.work.bytes / result.ours / 1e9:>8.0f}"
        f"{result.work.flops / result.ours / 1e12:>9.1f}{result.share_of(limits):>10.0%}"
        f"{result.theirs / result.ours:>13.2f}  {result.peer}"
    )
