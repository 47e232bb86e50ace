"""A whole run with scripted contenders: who is loaded, judged, given turns and reported."""

from dataclasses import replace
from pathlib import Path

import pytest

from peers.child import ContenderFailed, ContenderSpec
from peers.contest import Contest, Plan
from peers.field import MACHINE, REFERENCE, Model
from peers.report import OURS, as_json, as_text
from peers.workloads import W1, W3
from services.modelfiles.prepared import PreparedModel
from tests.support.local_cluster import prepared_tiny_model

MODULE = "tests.support.scripted_contender"
ALONE = ContenderSpec("one by one", MODULE, {"mood": "few"}, workloads=frozenset({"W1"}), same_model_as=REFERENCE)
SPECS = [
    ContenderSpec(OURS, MODULE),
    ContenderSpec(REFERENCE, MODULE),
    ALONE,
    ContenderSpec(MACHINE, MODULE, {"mood": "machine"}, workloads=frozenset()),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    directory = tmp_path_factory.mktemp("model")
    return Model(directory / "tiny.Q4_1.gguf", PreparedModel.open(prepared_tiny_model(directory)))


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def plan(tmp_path: Path, said: list[str]) -> Plan:
    return Plan((replace(W1, answer_tokens=3), replace(W3, prompt_tokens=32)), 2, 1, tmp_path, said.append)


def test_everybody_has_every_turn_and_the_report_is_complete(model: Model, plan: Plan, said: list[str]) -> None:
    found = Contest(model, plan).findings(SPECS, {})
    assert {who: {name: len(runs) for name, runs in by.items()} for who, by in found.runs.items()} == {
        OURS: {"W1": 2, "W3": 2},
        REFERENCE: {"W1": 2, "W3": 2},
        "one by one": {"W1": 2},
    }
    assert len(found.machine) == 2
    assert found.kl == {OURS: 0.0, REFERENCE: 0.0, "one by one": 0.0}
    report = as_json(found)
    assert report["ratios"]["W1_tokens_per_second"] == {REFERENCE: 1.0, "one by one": 1.0}
    assert report["settings"]["run"]["most_cores_used_by_those_without_a_turn"] < 1
    assert "one by one" in as_text(report)
    assert f"W1 2, {OURS}: 1600.0 tokens/s" in said


def test_an_optional_peer_that_cannot_be_loaded_is_reported_and_the_others_go_on(model: Model, plan: Plan) -> None:
    broken = ContenderSpec("vLLM", MODULE, {"mood": "dies"}, is_optional=True)
    found = Contest(model, plan).findings([*SPECS, broken], {})
    assert found.missing == {"vLLM": "vLLM: ended"}
    assert "vLLM" not in found.runs


def test_a_peer_that_must_be_there_ends_the_run(model: Model, plan: Plan) -> None:
    with pytest.raises(ContenderFailed, match="llama"):
        Contest(model, plan).findings([*SPECS, ContenderSpec("llama.cpp F16", MODULE, {"mood": "dies"})], {})
