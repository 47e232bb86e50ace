"""Findings into ratios, shares and tables."""

import json
import math
from dataclasses import replace

import pytest

from peers.limits import Machine
from peers.ratios import best_peer, is_comparable
from peers.report import OURS, as_json, as_text
from tests.unit.benchmarks.findings import findings, stream


def test_ratios_are_ours_over_theirs_of_medians() -> None:
    ratios = as_json(findings())["ratios"]
    assert ratios["W1_tokens_per_second"]["quick"] == pytest.approx(1.2)
    assert ratios["W1_ttft"]["quick"] == pytest.approx(1.1)
    assert ratios["W2_tokens_per_second"] == pytest.approx({"quick": 2.0, "slow": 10.0})
    assert ratios["W3_tokens_per_second"] == pytest.approx({"quick": 2.0, "slow": 0.8})


def test_a_peer_of_another_quality_is_listed_but_not_compared() -> None:
    report = as_json(findings())
    assert report["quality"]["coarse"]["comparable"] is False
    assert report["medians"]["coarse"]["W2"]["tokens_per_second"] == 900
    assert all("coarse" not in by_peer for by_peer in report["ratios"].values())


def test_the_best_peer_is_the_one_that_makes_ours_look_worst() -> None:
    best = as_json(findings())["best_peer"]
    assert {name: found["peer"] for name, found in best.items()} == {
        "W1_tokens_per_second": "quick",
        "W1_ttft": "quick",
        "W2_tokens_per_second": "quick",
        "W3_tokens_per_second": "slow",
    }


def test_a_peer_without_a_measure_is_missing_from_that_ratio_only() -> None:
    ratios = as_json(findings())["ratios"]
    assert ratios["W1_tokens_per_second"]["alone"] == pytest.approx(12.0)
    assert "alone" not in ratios["W1_ttft"] and "alone" not in ratios["W2_tokens_per_second"]


def test_shares_of_the_limit_come_from_this_runs_machine() -> None:
    shares = as_json(findings())["share_of_limit"]
    assert shares["W2"] == pytest.approx(80e6 / 10e9 * 100)
    assert 0 < shares["W3"] < 1


def test_a_share_is_the_median_of_each_repetitions_own() -> None:
    found = findings()
    runs = {**found.runs, OURS: {"W2": [stream(100, 0.1), stream(50, 0.1), stream(60, 0.1)]}}
    machines = [Machine(rate, 100e9, 50e9) for rate in (10e9, 5e9, 4e9)]
    shares = as_json(replace(found, runs=runs, machine=machines))["share_of_limit"]
    assert shares == {"W2": pytest.approx(0.8)}


def test_the_report_has_every_promised_key_and_is_plain_json() -> None:
    report = json.loads(json.dumps(as_json(findings()), allow_nan=False))
    promised = {"ratios", "share_of_limit", "bookkeeping_share", "medians", "settings", "quality", "profile", "limits"}
    assert promised <= report.keys()
    assert report["bookkeeping_share"] == 0.1
    assert report["spread"]["diptych"]["W1"] == {"least": 110, "most": 130, "runs": 3}


def test_the_tables_name_everybody_with_our_ratio_to_them() -> None:
    text = as_text(as_json(findings()))
    lines = [line.split() for line in text.splitlines() if line.strip().startswith("quick ")]
    assert lines == [
        ["quick", "100.0", "1.20", "2.00", "50.0", "90.0", "0.003"],
        ["quick", "50.0", "2.00", "0.20", "–", "–", "0.003"],
        ["quick", "200.0", "2.00", "5.00", "–", "–", "0.003"],
    ]
    assert "not run: vLLM: not installed" in text
    assert "W1_tokens_per_second      1.20  quick (higher is better)" in text
    assert "W2 reaches 80% of that limit" in text


def test_a_contender_that_computes_nonsense_is_told_apart_and_the_report_stays_json() -> None:
    found = findings()
    report = as_json(replace(found, kl={**found.kl, "quick": math.nan}))
    json.dumps(report, allow_nan=False)
    assert report["quality"]["quick"] == {"mean_kl": None, "limit": 0.02, "comparable": False}
    assert "quick" not in report["ratios"]["W1_tokens_per_second"]


def test_without_comparable_peers_nobody_is_best() -> None:
    assert best_peer("W1_ttft", {}) is None


@pytest.mark.parametrize(
    ("kl", "comparable"), [(0.0, True), (0.02, True), (0.021, False), (math.nan, False), (None, False)]
)
def test_quality_is_comparable_up_to_the_limit(kl: float | None, comparable: bool) -> None:
    assert is_comparable(kl) is comparable
