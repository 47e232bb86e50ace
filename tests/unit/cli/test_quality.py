"""The quality check from the command line: its lines, its tables, and its exit status on a real model."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from services.cli.__main__ import app
from services.cli.errors import CommandError
from services.cli.quality import report_of, show
from tests.unit.engine.quality.pairs import plant, tiny

TOTALS = {
    "prompts": 2,
    "tokens": 90,
    "perplexity": {"reference": 20.0, "served": 20.1, "ratio": 1.005},
    "kl": {"mean": 0.001, "max": 0.04},
    "agreement": 0.989,
}
REPORT: dict[str, Any] = {
    "model": "m",
    "engine": "compiled",
    "weights": "int8",
    "kv_dtype": "float16",
    **TOTALS,
    "kinds": [{"kind": "code", **TOTALS}],
    "worst": [{"kind": "code", "text": "def \x1b[31mf(x)", **TOTALS}],
    "matrices": [{"form": "int8", "count": 121, "usual": 0.007, "largest": 0.5, "at": "layer 7, down"}],
    "failures": ["layer 7, down: its int8 weights are off by 50.0%, usual is 0.70%"],
}


def lines(*events: dict[str, Any]) -> list[str]:
    return [json.dumps(event) + "\n" for event in events]


def test_progress_is_told_until_the_report_comes() -> None:
    told: list[str] = []
    progress = [{"event": "progress", "doing": "comparing prompts", "done": done, "of": 9} for done in (0, 1)]
    assert report_of(iter(lines(*progress, {"event": "report", "report": REPORT})), told.append) == REPORT
    assert told == ["comparing prompts (0 of 9)", "comparing prompts (1 of 9)"]


def test_an_error_of_the_check_is_the_commands_error() -> None:
    with pytest.raises(CommandError, match="no prompts"):
        report_of(iter(lines({"event": "error", "message": "the prompt file has no prompts"})), print)


def test_a_check_that_dies_has_no_report() -> None:
    assert report_of(iter([]), print) is None


def test_the_tables_name_kinds_worst_prompts_and_damage_and_steer_no_terminal() -> None:
    console = Console(width=160, record=True)
    show(REPORT, console)
    text = console.export_text()
    for part in ("all", "code: def [31mf(x)", "1.0050", "1.0e-03", "98.9%", "layer 7, down: its int8 weights"):
        assert part in text


def test_what_is_not_a_number_is_shown_as_that() -> None:
    console = Console(width=160, record=True)
    show({**REPORT, "kl": {"mean": None, "max": None}}, console)
    assert console.export_text().count("not a number") == 2


def checked(model: Path, prompts: Path, cache: Path) -> Result:
    command = ["model", "check-quality", str(model), "--prompts", str(prompts), "--json", "--threads", "1"]
    forms = ["--weights", "float32", "--kv-dtype", "float32"]
    return CliRunner().invoke(app, [*command, *forms], env={"DIPTYCH_CACHE": str(cache)})


def test_a_sound_model_passes_and_a_damaged_one_fails_by_name(tmp_path: Path) -> None:
    prepared = tiny(tmp_path)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("The lighthouse keeper wrote every evening.\n1, 2, 3, 5, 7, 11, 13, 17\n")
    sound = checked(prepared.directory, prompts, tmp_path)
    assert sound.exit_code == 0, sound.stderr
    report = json.loads(sound.stdout)
    assert report["prompts"] == 2 and report["failures"] == [] and abs(report["kl"]["mean"]) < 1e-9

    plant(prepared, "layers.3.down", lambda kept, of: kept.__setitem__(slice(None), of("layers.2.down")))
    damaged = checked(prepared.directory, prompts, tmp_path)
    assert damaged.exit_code == 1
    failures = json.loads(damaged.stdout)["failures"]
    assert failures[0].startswith("layer 3, down: its float32 weights are off by")


def test_a_prompt_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    found = checked(tiny(tmp_path).directory, tmp_path / "absent.txt", tmp_path)
    assert found.exit_code == 1 and "the prompt file cannot be read" in found.stderr
