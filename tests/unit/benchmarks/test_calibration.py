"""Fitting the simulator to what a live cluster did: a cluster that is a simulation is found again."""

from dataclasses import replace
from random import Random

import pytest

from calibration.fitting import Fit, fitted, outcomes, predictions
from calibration.observed import Observed, Served, WorkerFigures
from calibration.repeated import medians, worst

WORKER = WorkerFigures(0.004, 0.0012, 1e-7, 2e-6, 2000, 32, 0.18)
BLANK = Observed(30, 3, 64, 16, {"prefill": WORKER, "decode": WORKER}, {})
TRUTH = Fit(prefill_scale=1.2, decode_scale=1.6, request=0.03)


def asked(draw: Random, rate: float) -> list[Served]:
    at = 0.0
    rows = []
    for _ in range(8):
        rows.append(Served(at, draw.randint(48, 320), draw.randint(16, 64), 0.0, 0.0))
        at += draw.expovariate(rate)
    return rows


def served(draw: Random, rate: float) -> list[Served]:
    """As a cluster with these numbers would."""
    rows = asked(draw, rate)
    found = outcomes(BLANK, rows, TRUTH)
    return [replace(row, ttft=each.ttft, itl=each.itl) for row, each in zip(rows, found, strict=True)]


def test_what_was_put_in_is_found_and_predicts_other_loads() -> None:
    draw = Random(5)
    observed = replace(BLANK, loads={0.5: served(draw, 2.0), 0.8: served(draw, 3.2)})
    fit = fitted(observed, 0.5)
    assert fit.prefill_scale == pytest.approx(TRUTH.prefill_scale, abs=0.03)
    assert fit.decode_scale == pytest.approx(TRUTH.decode_scale, rel=0.02)
    assert fit.request == pytest.approx(TRUTH.request, abs=0.005)
    for row in predictions(observed, fit).values():
        assert abs(row["mean_ttft"]["error"]) < 0.02 and abs(row["mean_itl"]["error"]) < 0.02


def test_what_was_observed_can_be_kept() -> None:
    observed = replace(BLANK, loads={0.5: asked(Random(1), 2.0)})
    assert Observed.from_json(observed.as_json()) == replace(observed, loads={0.5: list(observed.loads[0.5])})


def test_of_several_runs_the_middle_one_counts() -> None:
    def run(error: float) -> dict[str, dict[str, object]]:
        figure = {"live": 1.0, "simulated": 1.0 + error, "error": error}
        level = {"live": 1.0, "simulated": 1.0, "error": 0.0}
        return {
            "0.5": {"mean_ttft": figure, "mean_itl": level, "requests": 2},
            "0.7": {"mean_ttft": {**figure, "error": -error}, "mean_itl": level, "requests": 3},
        }

    found = medians([run(0.1), run(0.9), run(0.2)])
    assert found["0.5"]["mean_ttft"] == {"live": 1.0, "simulated": 1.2, "error": 0.2}
    assert (found["0.5"]["requests"], found["0.7"]["requests"]) == (6, 9)
    assert worst(found, "0.5") == {"mean_ttft": -0.2, "mean_itl": 0.0}
