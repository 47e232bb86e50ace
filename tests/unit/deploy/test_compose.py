"""The compose file: five services that find each other, from the two images."""

import re

import pytest
import yaml

from deploy.helm import settings_schema
from services.runtime.settings import load
from tests.support.chart import ROOT, SERVICES, Document

COMPOSE: Document = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8"))


def test_it_starts_nats_a_model_pull_and_one_of_each_service() -> None:
    assert set(COMPOSE["services"]) == {"nats", "model", *SERVICES}
    for name in SERVICES:
        assert COMPOSE["services"][name]["command"] == [f"services.{name}"]


@pytest.mark.parametrize("name", SERVICES)
def test_the_image_is_the_target_that_it_is_built_from(name: str) -> None:
    service = COMPOSE["services"][name]
    target = "worker" if name in ("prefill", "decode") else "control"
    assert service["build"]["target"] == target
    assert service["image"].startswith(f"diptych-{target}:")


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_reads_its_environment_and_is_dialled_where_it_listens(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = COMPOSE["services"][name]
    kind = settings_schema.settings_type(name)
    prefix = f"DIPTYCH_{name.upper()}__"
    assert {key.removeprefix(prefix).lower() for key in service["environment"]} <= set(kind.model_fields)
    for variable, value in service["environment"].items():
        monkeypatch.setenv(variable, re.sub(r"\$\{\w+[^}]*\}", "a-token-of-the-test", value))
    settings = load(kind, name)
    assert settings.advertise == f"{name}:{settings.listen.rpartition(':')[2]}"
    assert settings.token.get_secret_value() in settings.nats_url
    assert float(service["stop_grace_period"].removesuffix("s")) > settings.drain_seconds


def test_only_loopback_is_published() -> None:
    published = [port for service in COMPOSE["services"].values() for port in service.get("ports", ())]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_the_token_has_no_default() -> None:
    assert COMPOSE["x-token"].startswith("${DIPTYCH_TOKEN:?")


def test_the_token_is_only_in_the_environment() -> None:
    for service in COMPOSE["services"].values():
        elsewhere = {field: value for field, value in service.items() if field != "environment"}
        assert "TOKEN" not in str(elsewhere)
    assert "DIPTYCH_TOKEN" in str(COMPOSE["services"]["nats"]["environment"])


def test_store_and_workers_share_memory_that_is_large_enough() -> None:
    for name in ("kvstore", "prefill", "decode"):
        assert "arena:/arena" in COMPOSE["services"][name]["volumes"]
    environment = COMPOSE["services"]["kvstore"]["environment"]
    assert environment["DIPTYCH_KVSTORE__ARENA_DIRECTORY"] == "/arena"
    options = dict(option.split("=") for option in COMPOSE["volumes"]["arena"]["driver_opts"]["o"].split(","))
    assert int(options["size"].removesuffix("m")) << 20 > int(environment["DIPTYCH_KVSTORE__CAPACITY_BYTES"])
    user, group = COMPOSE["services"]["kvstore"]["user"].split(":")
    assert (options["uid"], options["gid"], options["mode"]) == (user, group, "0700")
