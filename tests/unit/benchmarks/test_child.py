"""A contender in a process of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from peers.channel import Job
from peers.child import Child, ContenderFailed, ContenderSpec
from peers.workloads import Workload

SECONDS = 60.0
WORKLOAD = Workload("W1", 2, 4, 3, "")
JOB = Job(WORKLOAD, WORKLOAD.prompts(500, 0))


@contextmanager
def contender(logs: Path, mood: str = "") -> Iterator[Child]:
    with Child(ContenderSpec("scripted", "tests.support.scripted_contender", {"mood": mood}), logs, threads=2) as child:
        yield child


def test_a_contender_is_loaded_run_and_asked(tmp_path: Path) -> None:
    with contender(tmp_path) as child:
        assert child.load(SECONDS)["threads"] == "2"
        trace = child.run(JOB, SECONDS)
        assert trace.times == ((0.01, 0.02, 0.03),) * 2
        assert trace.tokens[0][0] == JOB.prompts[0][0]
        child.logits([[1, 2], [3]], tmp_path / "logits.npy", SECONDS)
        assert np.load(tmp_path / "logits.npy").shape == (3, 3)
        assert child.extras(SECONDS)["bookkeeping_share"] == 0.1
        assert child.cpu_seconds > 0


def test_what_a_library_prints_does_not_get_among_the_answers(tmp_path: Path) -> None:
    with contender(tmp_path) as child:
        child.load(SECONDS)
    assert "a library greets" in (tmp_path / "scripted.log").read_text()


def test_a_contender_ends_with_its_benchmark(tmp_path: Path) -> None:
    with contender(tmp_path) as child:
        child.load(SECONDS)
    with pytest.raises(psutil.NoSuchProcess):
        _ = child.cpu_seconds


@pytest.mark.parametrize(("mood", "said"), [("fails", "RuntimeError: the engine broke"), ("short", "another length")])
def test_a_run_that_goes_wrong_fails_the_benchmark_with_the_reason(tmp_path: Path, mood: str, said: str) -> None:
    with contender(tmp_path, mood) as child:
        child.load(SECONDS)
        with pytest.raises(ContenderFailed, match=said):
            child.run(JOB, SECONDS)


def test_a_contender_that_dies_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    with (
        contender(tmp_path, "dies") as child,
        pytest.raises(ContenderFailed, match="scripted: ended\na library greets"),
    ):
        child.load(SECONDS)
