"""The chart's settings are the services' settings: same names, same limits, readable by the classes that read them."""

import pytest

from deploy.helm import settings_schema
from services.runtime.settings import load
from tests.support.chart import SERVICES, Documents, component, render

of_each_service = pytest.mark.parametrize("name", SERVICES)


def fields_set(documents: Documents, name: str) -> dict[str, str]:
    """Settings fields that the chart fills in for a component; "" where the value is known only in the cluster."""
    prefix = f"DIPTYCH_{name.upper()}__"
    variables = [v for v in documents.container(name)["env"] if v["name"].startswith("DIPTYCH_")]
    assert all(variable["name"].startswith(prefix) for variable in variables)
    return {v["name"].removeprefix(prefix).lower(): v.get("value", "") for v in variables}


@of_each_service
def test_every_variable_of_the_chart_is_a_field_of_the_service(name: str) -> None:
    fields = settings_schema.settings_type(name).model_fields
    assert set(fields_set(render(), name)) <= set(fields)


@of_each_service
def test_the_service_reads_what_the_chart_wrote(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for field, value in fields_set(render(), name).items():
        monkeypatch.setenv(f"DIPTYCH_{name.upper()}__{field.upper()}", value)
    settings = load(settings_schema.settings_type(name), name)
    assert settings.drain_seconds == 60
    assert settings.metrics_port == 9464
    assert settings.listen.startswith("0.0.0.0:")


def test_a_list_of_addresses_reaches_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = ["west-scheduler-a:50052", "west-scheduler-b:50052"]
    documents = render(component("gateway", settings={"schedulers": addresses}))
    for field, value in fields_set(documents, "gateway").items():
        monkeypatch.setenv(f"DIPTYCH_GATEWAY__{field.upper()}", value)
    settings = load(settings_schema.settings_type("gateway"), "gateway")
    assert list(settings.model_dump()["schedulers"]) == addresses


def test_a_traffic_class_reaches_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = render(component("scheduler", settings={"classes": {"batch": {"level": -1, "shares": {"acme": 2.0}}}}))
    for field, value in fields_set(documents, "scheduler").items():
        monkeypatch.setenv(f"DIPTYCH_SCHEDULER__{field.upper()}", value)
    settings = load(settings_schema.settings_type("scheduler"), "scheduler")
    assert settings.model_dump()["classes"]["batch"]["shares"] == {"acme": 2.0}


def test_a_large_number_arrives_as_it_was_given() -> None:
    documents = render(component("decode", settings={"num_blocks": 100_000_000}))
    assert fields_set(documents, "decode")["num_blocks"] == "100000000"


def test_the_schema_is_fresh() -> None:
    text = settings_schema.SCHEMA.read_text(encoding="utf-8")
    assert settings_schema.with_settings(text) == text, "run python -m deploy.helm.settings_schema"
