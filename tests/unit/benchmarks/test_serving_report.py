"""What serving was found to cost."""

import json

import pytest

from peers.serving_report import ENGINE, SPLIT, UNSPLIT, Served, served_json, served_text
from tests.unit.benchmarks.findings import batch

SERVED = Served(
    runs={
        ENGINE: {"W1": [batch(100, 2.0)], "W2": [{"tokens_per_second": 80.0, "ttft": 0.2}]},
        UNSPLIT: {"W1": [batch(90, 2.2), batch(96, 2.0), batch(93, 2.1)], "W2": [batch(76, 0.3)]},
        SPLIT: {"W1": [batch(62, 3.0)], "W2": [batch(83.6, 0.4)]},
        "llama-server F16": {"W1": [batch(60, 2.8)], "W2": [batch(38, 0.3)]},
    },
    undisturbed={SPLIT: [0.05] * 50, UNSPLIT: [0.04] * 50},
    disturbed={SPLIT: [0.06] * 50, UNSPLIT: [0.2] * 50},
    long_ttft={SPLIT: [9.0, 7.0, 8.0], UNSPLIT: [5.0]},
    settings={"run": {"threads": 2}},
)


def test_our_unsplit_server_is_compared_with_others() -> None:
    ratios = served_json(SERVED)["ratios"]
    assert ratios["W1_tokens_per_second"] == pytest.approx({"llama-server F16": 93 / 60})
    assert ratios["W1_ttft"] == pytest.approx({"llama-server F16": 2.1 / 2.8})
    assert ratios["W2_tokens_per_second"] == pytest.approx({"llama-server F16": 2.0})


def test_serving_is_compared_with_the_engine_alone_and_split_with_unsplit() -> None:
    report = served_json(SERVED)
    assert report["serving_share"] == pytest.approx({"W1": 0.93, "W2": 0.95})
    assert report["split_over_unsplit"] == pytest.approx({"W1": 62 / 93, "W2": 1.1})


def test_a_long_prompts_arrival_is_measured_against_the_same_server_undisturbed() -> None:
    arrival = served_json(SERVED)["arrival"]
    assert arrival[SPLIT]["p99_ratio"] == pytest.approx(1.2)
    assert arrival[UNSPLIT]["p99_ratio"] == pytest.approx(5.0)
    assert arrival[SPLIT]["long_prompt_ttft"] == 8.0


def test_the_report_is_plain_json_and_its_tables_say_it_plainly() -> None:
    report = json.loads(json.dumps(served_json(SERVED), allow_nan=False))
    text = served_text(report)
    assert "W1: unsplit serving gives 0.93 of what the engine alone does" in text
    assert "W1: splitting costs 33% of the output on this machine" in text
    assert "W2: splitting gains 10% of the output on this machine" in text
    assert "p99 × 1.20; the long prompt waits 8.0 s" in text
