"""`diptych simulate`, with the real simulator as a process on a small real trace."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from services.cli.errors import CommandError
from services.cli.simulate import Scenario, show, simulated

TRACE = Path(__file__).parent.parent / "simulation" / "traces" / "mooncake_conversation_300.jsonl.gz"


def shown(found: dict[str, object]) -> str:
    console = Console(file=io.StringIO(), width=200)
    show(found, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_one_policy_at_one_load() -> None:
    doings: list[str] = []
    found = simulated(Scenario(TRACE, policy="least_load", load=0.5, limit=40), doings.append)
    (row,) = found["policies"].values()
    assert list(found["policies"]) == ["least_load"]
    assert row["requests"] == 40
    assert row["mean_ttft_seconds"] > 0 and row["goodput"] > 0 and 0 <= row["cache_hit_rate"] < 1
    assert {"p50", "p99"} <= row["ttft_percentiles"].keys()
    assert doings == ["measuring the capacity", "load 0.5: least_load"]
    assert "least_load" in shown(found)


def test_a_comparison_has_every_policy_at_every_load() -> None:
    found = simulated(Scenario(TRACE, prefill=2, decode=2, limit=30, compares=True), lambda _: None)
    names = {"ours", "random", "least_load", "cache_aware_local", "unsplit_chunked"}
    assert found["policies"].keys() == names
    assert [at["load"] for at in found["loads"]] == [0.5, 0.7, 0.85, 1.0, 1.2]
    assert all(at["policies"].keys() == names for at in found["loads"])
    assert found["ratios"]["random"]["published"] == pytest.approx(6.4, abs=0.01)
    assert found["split_pays"].keys() >= {"mean TTFT"}
    text = shown(found)
    assert all(name in text for name in names) and "pays at" in text


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        (Scenario(Path("nowhere.jsonl")), "cannot read the trace"),
        (Scenario(TRACE, policy="by_star_sign"), "no such policy"),
        (Scenario(TRACE, profile="abacus"), "no such profile"),
    ],
)
def test_what_cannot_be_simulated_is_told(scenario: Scenario, message: str) -> None:
    with pytest.raises(CommandError, match=message):
        simulated(scenario, lambda _: None)
