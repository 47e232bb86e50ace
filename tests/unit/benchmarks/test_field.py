"""Who takes part, and the two scripts as one runs them."""

import subprocess
import sys
from pathlib import Path

import pytest

from peers import field
from peers.child import BENCHMARKS, ContenderFailed
from peers.field import Model, contenders, vllm
from peers.workloads import W1
from services.modelfiles.prepared import PreparedModel
from tests.support.local_cluster import prepared_tiny_model


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model(tmp_path / "tiny.Q4_1.gguf", PreparedModel.open(prepared_tiny_model(tmp_path)))


def test_a_missing_peer_fails_the_run_and_says_what_to_do(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(field, "PEERS_PYTHON", tmp_path / "python")
    with pytest.raises(ContenderFailed, match="make bench-peers"):
        contenders(model, tmp_path, 2, [W1])


def test_an_environment_without_llama_cpp_fails_the_run_with_the_name_of_what_is_missing(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(field, "PEERS_PYTHON", Path(sys.executable))
    with pytest.raises(ContenderFailed, match="llama_cpp"):
        contenders(model, tmp_path, 2, [W1])


def test_vllm_is_left_out_where_it_is_not_installed(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(field, "VLLM_PYTHON", tmp_path / "python")
    assert vllm(model, tmp_path, 2) == []


def test_a_model_that_the_peers_cannot_open_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContenderFailed, match="GGUF"):
        Model.of(str(tmp_path), tmp_path)


@pytest.mark.parametrize("script", ["engine.py", "serving.py"])
def test_the_scripts_run_from_anywhere_and_refuse_an_unknown_workload(script: str, tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / script), "--workloads", "W9"]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert finished.returncode == 1
    assert finished.stderr.strip() == "workloads are W1, W2, W3"
    assert finished.stdout == ""
