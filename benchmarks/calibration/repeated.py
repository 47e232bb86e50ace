"""Several runs of one comparison: the median of each figure, so that a disturbed run decides nothing. Pure."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

FIGURES = ("mean_ttft", "mean_itl")

Loads = Mapping[str, Mapping[str, Any]]


def medians(runs: Sequence[Loads]) -> dict[str, dict[str, Any]]:
    """By load, of runs that have the same loads, each with a fit of its own: `error` is the median of their errors."""
    found: dict[str, dict[str, Any]] = {}
    for load in runs[0]:
        rows = [run[load] for run in runs]
        found[load] = {
            figure: {name: median(row[figure][name] for row in rows) for name in ("live", "simulated", "error")}
            for figure in FIGURES
        } | {"requests": sum(row["requests"] for row in rows)}
    return found


def worst(loads: Loads, fitted: str) -> dict[str, float]:
    """By figure, the largest error at a load that was not fitted."""
    others = [row for load, row in loads.items() if load != fitted]
    return {figure: max((row[figure]["error"] for row in others), key=abs) for figure in FIGURES}
