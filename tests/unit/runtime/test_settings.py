"""Settings come from the environment over a file, are frozen, and their errors are readable and keep secrets."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from services.runtime.settings import ServiceSettings, load


class Settings(ServiceSettings):
    pages: int = 3


def test_the_environment_wins_over_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    toml = tmp_path / "diptych.toml"
    toml.write_text('[decode]\npages = 7\nname = "from-file"\n[prefill]\npages = 9\n')
    monkeypatch.setenv("DIPTYCH_DECODE__NAME", "from-environment")
    settings = load(Settings, "decode", toml)
    assert (settings.pages, settings.name) == (7, "from-environment")


def test_the_standard_otlp_variable_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317")
    assert load(Settings, "decode", tmp_path / "none").otlp_endpoint == "http://collector:4317"


def test_a_wrong_value_is_named_and_never_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DIPTYCH_DECODE__PAGES", "hunter2")
    with pytest.raises(SystemExit) as caught:
        load(Settings, "decode", tmp_path / "none")
    assert "pages" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_planted_faults_are_refused_outside_the_test_profile() -> None:
    with pytest.raises(ValidationError):
        ServiceSettings(faults={"kv.put": 0.2})
    assert ServiceSettings(faults={"kv.put": 0.2}, profile="test").faults == {"kv.put": 0.2}


@pytest.mark.parametrize("faults", [{"kv.pat": 1}, {"kv.put": {"drop": 1}}, {"kv.part": {"dorp": 1}}])
def test_a_fault_that_cannot_be_planted_is_a_wrong_setting(faults: dict[str, float | dict[str, float]]) -> None:
    with pytest.raises(ValidationError, match="faults") as caught:
        ServiceSettings(faults=faults, profile="test")
    assert "kv.part" in str(caught.value) or "throttle" in str(caught.value), "it says what can be planted"


def test_faults_come_from_the_environment_as_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DIPTYCH_DECODE__PROFILE", "test")
    monkeypatch.setenv("DIPTYCH_DECODE__FAULTS", '{"kv.get": 0.5, "kv.in": {"corrupt": 1, "every": 3}}')
    faults = load(Settings, "decode", tmp_path / "none").faults
    assert faults == {"kv.get": 0.5, "kv.in": {"corrupt": 1, "every": 3}}


def test_settings_do_not_change_once_read() -> None:
    with pytest.raises(ValidationError):
        ServiceSettings().name = "other"
