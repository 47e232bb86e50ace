"""Damage by what is computed: embedding, each layer, head, each fed what the reference has at that point.

So an error does not travel from layer to layer, and the stage that makes it is the stage that shows it: norms, biases,
rotations and attention as well as matrices.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.engine.quality.matrices import Damage
from services.engine.quality.outliers import outliers, usual
from services.engine.quality.subject import Floats, Subject

MOST_TOKENS = 48
"""Of a prompt that is looked at layer by layer."""
TIMES_USUAL = 4.0
"""Layers differ more than matrices do: an error is relative to what a layer adds, and some add little."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The largest error of a stage that its form explains."""

    embedding: float
    layer: float
    head: float

    @classmethod
    def of(cls, rounds: bool, kv_dtype: str) -> "Tolerance":
        """`rounds` says whether weights are rounded at all."""
        kv = {"float32": 0.0, "float16": 0.01, "int8": 0.15}[kv_dtype]
        return cls(0.05, 0.15 + kv, 0.1) if rounds else cls(1e-6, 1e-3 + kv, 1e-3)


@dataclass(frozen=True, slots=True)
class StageError:
    """The largest of the prompts' errors at a stage."""

    place: str
    """`embedding`, `layer 7` or `head`."""
    error: float


def measured(reference: Subject, served: Subject, layers: int, prompts: Sequence[Sequence[int]]) -> list[StageError]:
    """In the order of the stages."""
    places = ["embedding", *(f"layer {index}" for index in range(layers)), "head"]
    of_prompts = [_of_prompt(reference, served, layers, tokens[:MOST_TOKENS]) for tokens in prompts]
    return [
        StageError(place, float(np.max(each)))
        for place, each in zip(places, zip(*of_prompts, strict=True), strict=True)
    ]


def damaged(errors: Sequence[StageError], tolerance: Tolerance) -> list[Damage]:
    """Each stage against what its form explains, and layers also among themselves."""
    embedding, *layers, head = errors
    odd = set(outliers([each.error for each in layers], TIMES_USUAL))
    # Where nothing is rounded the last digits of a sum differ, and there any layer may stand out.
    noise = tolerance.layer / 10
    found = [each for each, most in ((embedding, tolerance.embedding),) if not each.error <= most]
    found += [
        each
        for at, each in enumerate(layers)
        if not each.error <= tolerance.layer or (at in odd and each.error > noise)
    ]
    found += [head] if not head.error <= tolerance.head else []
    usually = usual([each.error for each in layers])
    return [
        Damage(each.place, f"it computes with an error of {each.error:.2%}, usual is {usually:.2%}") for each in found
    ]


def _of_prompt(reference: Subject, served: Subject, layers: int, tokens: Sequence[int]) -> list[float]:
    rows = reference.embedded(tokens).copy()
    errors = [_error(served.embedded(tokens), rows)]
    for index in range(layers):
        wanted = reference.layer(index, rows).copy()
        # Relative to what the layer adds: what passes it by is no merit of the layer.
        errors.append(_error(served.layer(index, rows) - rows, wanted - rows))
        rows = wanted
    errors.append(_error(_centred(served.head(rows)), _centred(reference.head(rows))))
    return errors


def _error(found: Floats, wanted: Floats) -> float:
    """Mean over rows of the relative error: a first token is often a hundred times larger than all others."""
    off = np.linalg.norm((found - wanted).astype(np.float64), axis=1)
    size = np.linalg.norm(wanted.astype(np.float64), axis=1)
    return float(np.mean(off / np.maximum(size, np.finfo(np.float32).tiny)))


def _centred(logits: Floats) -> Floats:
    """A shift of all logits of a row changes no probability."""
    return np.asarray(logits - logits.mean(axis=1, keepdims=True))
