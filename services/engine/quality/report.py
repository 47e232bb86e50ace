"""What a check found, as one JSON object, and whether it is good enough. Pure.

perplexity   exp of the mean loss over all predicted tokens of all prompts: reference, served, and served ÷ reference
kl           mean and maximum over all positions, in nats
agreement    share of positions where both find the same token most likely
kinds        the same for the prompts of each kind
worst        the prompts with the largest mean KL, the worst first
matrices     per form: how many, usual and largest error, and where that is
stages       error of each stage of the model
damage       what is not as it should be, by place
failures     sentences; none means that the engine passes
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.engine.quality.matrices import Damage, MatrixError
from services.engine.quality.outliers import usual
from services.engine.quality.prompts import Prompt
from services.engine.quality.rows import Rows, joined
from services.engine.quality.stages import StageError

MOST_PERPLEXITY = 0.015
"""How far the ratio of perplexities may be from 1."""
MOST_DIVERGENCE = 0.02
"""Mean KL in nats."""
WORST = 10
TEXT_CHARACTERS = 60

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PromptRows:
    """A prompt and what was measured of it."""

    prompt: Prompt
    rows: Rows


@dataclass(frozen=True, slots=True)
class Inspection:
    """What the search for damage measured and found."""

    matrices: Sequence[MatrixError]
    stages: Sequence[StageError]
    damage: Sequence[Damage]


def report(settings: Mapping[str, str], measured: Sequence[PromptRows], inspection: Inspection) -> Json:
    """`settings` say what was measured and come first."""
    totals = _totals(measured)
    whole = {
        **settings,
        **totals,
        "kinds": [{"kind": kind, **_totals(of_kind)} for kind, of_kind in _by_kind(measured).items()],
        "worst": [_worst(each) for each in sorted(measured, key=_badness, reverse=True)[:WORST]],
        "matrices": _forms(inspection.matrices),
        "stages": [{"place": each.place, "error": each.error} for each in inspection.stages],
        "damage": [{"place": each.place, "reason": each.reason} for each in inspection.damage],
        "bounds": {"perplexity": MOST_PERPLEXITY, "mean_kl": MOST_DIVERGENCE},
        "failures": failures(totals, inspection.damage),
    }
    return {name: _finite(value) for name, value in whole.items()}


def failures(totals: Json, damage: Sequence[Damage]) -> list[str]:
    """Damage first: it explains the rest. What is not a number fails."""
    found = [f"{each.place}: {each.reason}" for each in damage]
    ratio, divergence = totals["perplexity"]["ratio"], totals["kl"]["mean"]
    if not abs(ratio - 1) <= MOST_PERPLEXITY:
        found.append(f"perplexity is {ratio:.3f} of float32's; it may be {MOST_PERPLEXITY:.1%} from it")
    if not divergence < MOST_DIVERGENCE:
        found.append(f"mean KL to float32 is {divergence:.4f}; it must be under {MOST_DIVERGENCE}")
    return found


def _totals(measured: Sequence[PromptRows]) -> Json:
    rows = joined([each.rows for each in measured])
    reference, served = _perplexity(rows.reference_loss), _perplexity(rows.served_loss)
    return {
        "prompts": len(measured),
        "tokens": len(rows.divergence),
        "perplexity": {"reference": reference, "served": served, "ratio": served / reference},
        "kl": {"mean": float(rows.divergence.mean()), "max": float(rows.divergence.max())},
        "agreement": float(rows.agrees.mean()),
    }


def _perplexity(losses: np.ndarray) -> float:
    with np.errstate(over="ignore"):
        return float(np.exp(losses.mean()))


def _by_kind(measured: Sequence[PromptRows]) -> dict[str, list[PromptRows]]:
    kinds: dict[str, list[PromptRows]] = defaultdict(list)
    for each in measured:
        kinds[each.prompt.kind].append(each)
    return kinds


def _badness(each: PromptRows) -> float:
    divergence = float(each.rows.divergence.mean())
    return math.inf if math.isnan(divergence) else divergence


def _worst(each: PromptRows) -> Json:
    text = " ".join(each.prompt.text.split())
    shown = text if len(text) <= TEXT_CHARACTERS else f"{text[: TEXT_CHARACTERS - 1]}…"
    return {"kind": each.prompt.kind, "text": shown, **_totals([each])}


def _forms(errors: Sequence[MatrixError]) -> list[Json]:
    by_form: dict[str, list[MatrixError]] = defaultdict(list)
    for each in errors:
        by_form[each.form].append(each)
    found = []
    for form, alike in by_form.items():
        largest = max(alike, key=lambda each: math.inf if math.isnan(each.error) else each.error)
        found.append(
            {
                "form": form,
                "count": len(alike),
                "usual": usual([each.error for each in alike]),
                "largest": largest.error,
                "at": largest.place,
            }
        )
    return found


def _finite(value: Any) -> Any:
    """JSON has no word for what is not a number: null stands for it."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
