"""The report's numbers and its verdict."""

import json
import math

import numpy as np
import pytest

from services.engine.quality.matrices import Damage, MatrixError
from services.engine.quality.prompts import Prompt
from services.engine.quality.report import Inspection, PromptRows, report
from services.engine.quality.rows import Rows
from services.engine.quality.stages import StageError

SOUND = Inspection([MatrixError("head", "int8", 0.007, 1.0)], [StageError("head", 0.01)], [])


def rows(kind: str, text: str, divergence: list[float], losses: list[float], served: list[float]) -> PromptRows:
    agrees = np.array([value < 0.1 for value in divergence])
    tokens = tuple(range(len(divergence)))
    return PromptRows(
        Prompt(kind, text, tokens), Rows(np.array(divergence), agrees, np.array(losses), np.array(served))
    )


def test_totals_are_over_tokens_and_not_over_prompts() -> None:
    found = report(
        {"model": "m"},
        [
            rows("a", "short", [0.04, 0.0], [1.0], [1.5]),
            rows("b", "long", [0.0, 0.0, 0.0, 0.2], [2.0, 2.0, 2.0], [2.0, 2.0, 2.0]),
        ],
        SOUND,
    )
    assert found["model"] == "m" and found["prompts"] == 2 and found["tokens"] == 6
    assert found["kl"] == {"mean": pytest.approx(0.04), "max": 0.2}
    assert found["agreement"] == pytest.approx(5 / 6)
    assert found["perplexity"]["reference"] == pytest.approx(math.exp(7 / 4))
    assert found["perplexity"]["ratio"] == pytest.approx(math.exp(0.5 / 4))
    assert [(kind["kind"], kind["tokens"]) for kind in found["kinds"]] == [("a", 2), ("b", 4)]
    assert json.loads(json.dumps(found)) == found


def test_the_worst_prompts_come_first_with_their_beginnings() -> None:
    measured = [rows("k", f"prompt {n}\n{'x' * 99}", [n / 1000] * 2, [1.0], [1.0]) for n in range(12)]
    worst = report({}, measured, SOUND)["worst"]
    assert [each["text"][:9] for each in worst] == [f"prompt {n}".ljust(9) for n in (11, 10, 9, 8, 7, 6, 5, 4, 3, 2)]
    assert all(len(each["text"]) == 60 and "\n" not in each["text"] for each in worst)


def test_within_the_bounds_nothing_fails() -> None:
    assert report({}, [rows("k", "t", [0.019], [1.0], [1.014])], SOUND)["failures"] == []


@pytest.mark.parametrize(
    ("divergence", "served", "word"),
    [(0.021, 1.0, "KL"), (0.0, 1.016, "perplexity"), (0.0, 0.984, "perplexity"), (math.nan, 1.0, "KL")],
)
def test_what_is_over_a_bound_is_said(divergence: float, served: float, word: str) -> None:
    (failure,) = report({}, [rows("k", "t", [divergence], [1.0], [served])], SOUND)["failures"]
    assert word in failure


def test_damage_fails_though_the_prompts_are_fine() -> None:
    damage = [Damage("layer 7, down", "its int8 weights are off by 50.0%, usual is 0.70%")]
    found = report({}, [rows("k", "t", [0.0], [1.0], [1.0])], Inspection(SOUND.matrices, SOUND.stages, damage))
    assert found["failures"] == ["layer 7, down: its int8 weights are off by 50.0%, usual is 0.70%"]


def test_what_is_not_a_number_is_null_and_comes_first_among_the_worst() -> None:
    measured = [rows("k", "fine", [0.5], [1.0], [1.0]), rows("k", "broken", [math.nan], [1.0], [math.nan])]
    found = report({}, measured, Inspection([MatrixError("head", "int8", math.nan, math.nan)], SOUND.stages, []))
    assert found["kl"] == {"mean": None, "max": None} and found["perplexity"]["ratio"] is None
    assert found["worst"][0]["text"] == "broken" and found["worst"][0]["kl"]["mean"] is None
    assert found["matrices"][0]["largest"] is None
    assert len(found["failures"]) == 2
