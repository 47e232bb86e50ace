"""What a comparison says: where a baseline is better than ours, and where the split stops paying."""

from collections.abc import Mapping, Sequence
from typing import Any

from services.simulation.comparison import OURS

TOLERANCE = 0.01
"""Figures so close are equal."""

Loads = Sequence[Mapping[str, Any]]


def worse(loads: Loads) -> list[dict[str, object]]:
    """Every load and figure at which ours is worse than a baseline; none is what is meant."""
    found: list[dict[str, object]] = []
    for at in loads:
        ours = at["policies"][OURS]
        for policy, row in at["policies"].items():
            for figure, is_less_better in (("mean_ttft_seconds", True), ("goodput", False)):
                one, other = (ours[figure], row[figure]) if is_less_better else (row[figure], ours[figure])
                if one > other * (1 + TOLERANCE):
                    ratio = ours[figure] / row[figure] if row[figure] else None
                    found.append({"load": at["load"], "policy": policy, "figure": figure, "ratio": ratio})
    return found


def split_pays(loads: Loads) -> dict[str, dict[str, object]]:
    """By limit on gaps between tokens, and for the mean TTFT: loads at which ours is at least as good as the best
    unsplit cluster of as many machines, and those at which it is not."""
    compared = [at for at in loads if "best_unsplit" in at]
    if not compared:
        return {}
    found: dict[str, dict[str, object]] = {}
    for limit in compared[0]["best_unsplit"]["goodput_by_itl_limit"]:
        pays = {at["load"]: _goodput_pays(at, limit) for at in compared}
        found[f"goodput at {limit} s between tokens"] = _parted(pays)
    found["mean TTFT"] = _parted({at["load"]: _ttft_pays(at) for at in compared})
    return found


def _goodput_pays(at: Mapping[str, Any], limit: str) -> bool:
    unsplit = at["best_unsplit"]["goodput_by_itl_limit"][limit]
    return bool(at["policies"][OURS]["goodput_by_itl_limit"][limit] * (1 + TOLERANCE) >= unsplit)


def _ttft_pays(at: Mapping[str, Any]) -> bool:
    ours = at["policies"][OURS]["mean_ttft_seconds"]
    return bool(ours <= at["best_unsplit"]["mean_ttft_seconds"] * (1 + TOLERANCE))


def _parted(pays: Mapping[float, bool]) -> dict[str, object]:
    return {
        "pays_at": [load for load, does in pays.items() if does],
        "does_not_pay_at": [load for load, does in pays.items() if not does],
    }
