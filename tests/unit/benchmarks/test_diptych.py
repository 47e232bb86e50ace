"""Our engine as a contender, on a small model: the worker's own loop, batcher and engine."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from peers.channel import Job, Json
from peers.diptych import Diptych
from peers.workloads import Workload
from tests.support.local_cluster import prepared_tiny_model

SHORT = Workload("W1", 5, 20, 7, "")


class Loaded:
    """A contender and what it told of itself."""

    def __init__(self, contender: Diptych, settings: Json) -> None:
        self.contender = contender
        self.settings = settings


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    model = prepared_tiny_model(tmp_path_factory.mktemp("model"))
    with asyncio.Runner() as runner:
        contender = Diptych(runner)
        yield Loaded(contender, contender.load({"model": str(model), "threads": 1}))


def test_every_request_gets_its_whole_answer(loaded: Loaded) -> None:
    trace = loaded.contender.run(Job(SHORT, SHORT.prompts(200, 0)))
    assert [len(stream) for stream in trace.times] == [SHORT.answer_tokens] * SHORT.requests
    assert [len(answer) for answer in trace.tokens] == [SHORT.answer_tokens] * SHORT.requests


def test_runs_follow_one_another_in_the_same_loop(loaded: Loaded) -> None:
    job = Job(SHORT, SHORT.prompts(200, 1))
    assert loaded.contender.run(job).tokens == loaded.contender.run(job).tokens


def test_logits_are_after_every_token_of_every_text(loaded: Loaded, tmp_path: Path) -> None:
    path = tmp_path / "logits.npy"
    loaded.contender.logits([[5, 6, 7], [8] * 18], path)
    found = np.load(path)
    assert found.shape[0] == 21 and found.dtype == np.float32
    (answer,) = loaded.contender.run(Job(Workload("W2", 1, 3, 1, ""), [[5, 6, 7]])).tokens
    assert found[2].argmax() == answer[0]


def test_the_profile_of_a_decode_step_adds_up(loaded: Loaded) -> None:
    told = loaded.contender.extras()
    profile = told["profile"]
    shares = {name: share for name, share in profile.items() if name not in ("step_seconds", "rows", "idle")}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert all(0 <= share <= 1 for share in shares.values()) and 0 <= profile["idle"] <= 1
    assert told["bookkeeping_share"] == shares["bookkeeping"]
    assert profile["rows"] > 1


def test_the_settings_are_the_workers_defaults_with_room_for_all_of_a_workload(loaded: Loaded) -> None:
    assert loaded.settings["max_running"] >= 16
    assert loaded.settings["weight_bytes"] > 0
    assert loaded.settings["threads"] == 1
