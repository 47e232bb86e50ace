"""Values the chart refuses before anything reaches a cluster."""

import pytest
from helm_python import HelmRenderError, HelmValuesError

from tests.support.chart import component, render

CLAIM = {"volume": "claim"}

MISSPELT_OR_IMPOSSIBLE = {
    "a misspelt field": (component("decode", replica=2), "replica"),
    "a misspelt setting": (component("decode", settings={"num_blockz": 8}), "num_blockz"),
    "an unknown component": (component("router", replicas=1), "router"),
    "an impossible setting": (component("gateway", settings={"drain_seconds": -1}), "drain_seconds"),
    "a setting of the wrong type": (component("gateway", settings={"drain_seconds": "long"}), "drain_seconds"),
    "a setting that the chart makes": (component("decode", settings={"listen": "0.0.0.0:1"}), "listen"),
    "a planted fault": (component("decode", settings={"faults": {"step": 1}}), "faults"),
    "no gateway": (component("gateway", replicas=0), "replicas"),
    "no decode worker": (component("decode", replicas=0), "replicas"),
    "an accelerator for the gateway": (component("gateway", resources={"limits": {"nvidia.com/gpu": 1}}), "nvidia.com"),
    "an arena that is no path": ({"arena": {"nodePath": "dev/shm"}}, "nodePath"),
    "a store without a size": (component("kvstore", settings={"capacity_bytes": None}), "capacity_bytes"),
    "an autoscaler for the store": (component("kvstore", autoscaler={"enabled": True}), "enabled"),
    "a token that breaks a URL": ({"token": {"existingSecret": "", "value": "has/slashes/and:colons"}}, "token/value"),
    "a short token": ({"token": {"existingSecret": "", "value": "short"}}, "token/value"),
    "a model path that climbs": ({"models": {"directory": "../etc"}}, "models/directory"),
    "an unknown access mode": ({"models": {"claim": {"accessMode": "ReadMostly"}}}, "accessMode"),
    "an empty startup budget": (component("prefill", startupSeconds=0), "startupSeconds"),
}

CONTRADICTORY = {
    "grace period too short": (component("gateway", graceSeconds=65), "gateway: graceSeconds 65 must be greater than"),
    "grace period shorter than a longer drain": (
        component("decode", graceSeconds=90, settings={"drain_seconds": 300}),
        "decode: graceSeconds 90 must be greater than preStopSeconds + settings.drain_seconds = 300",
    ),
    "autoscaler upside down": (
        component("prefill", autoscaler={"enabled": True, "min": 5, "max": 2}),
        "prefill: autoscaler.min 5 must not be greater than autoscaler.max 2",
    ),
    "autoscaler without a metric": (
        component("prefill", autoscaler={"enabled": True, "metric": ""}),
        "prefill: autoscaler.metric is empty",
    ),
    "a rolling update that cannot begin": (
        component("decode", strategy={"maxSurge": "0%", "maxUnavailable": 0}),
        "decode: strategy.maxSurge and strategy.maxUnavailable must not both be 0",
    ),
    "no token": ({"token": {"existingSecret": ""}}, "token: name a Secret"),
    "no NATS": ({"nats": {"enabled": False}}, "nats: with nats.enabled false"),
    "two NATS": (
        {"nats": {"url": "nats://bus:4222"}},
        "nats: nats.url and nats.urlSecret are for a server of your own",
    ),
    "one node's volume for several pods": (
        {"models": {**CLAIM, "claim": {"accessMode": "ReadWriteOnce"}}},
        "models: a claim with access mode ReadWriteOnce cannot serve the 4 pods",
    ),
    "one node's volume for pods that an autoscaler adds": (
        {
            "models": {**CLAIM, "claim": {"accessMode": "ReadWriteOnce"}},
            **component("decode", autoscaler={"enabled": True, "max": 8}),
        },
        "cannot serve the 11 pods",
    ),
    "pulling into what cannot be written": (
        {"models": {**CLAIM, "claim": {"existing": "weights", "accessMode": "ReadOnlyMany"}}},
        "models: models.reference is pulled into the claim, which ReadOnlyMany forbids",
    ),
    "a new claim that nobody fills": ({"models": {**CLAIM, "reference": ""}}, "models: a claim that the chart makes"),
    "a pod's volume that nobody fills": ({"models": {"reference": ""}}, "models: models.volume pod starts empty"),
    "blocks of two sizes": (component("decode", settings={"block_size": 32}), "prefill, decode: settings.block_size"),
    "a split without a store": (component("kvstore", replicas=0), "kvstore: prefill hands its blocks over"),
}


@pytest.mark.parametrize(("changes", "culprit"), MISSPELT_OR_IMPOSSIBLE.values(), ids=list(MISSPELT_OR_IMPOSSIBLE))
def test_the_schema_refuses_and_names_the_value(changes: dict[str, object], culprit: str) -> None:
    with pytest.raises(HelmValuesError) as refusal:
        render(changes)
    assert culprit in str(refusal.value)


@pytest.mark.parametrize(("changes", "sentence"), CONTRADICTORY.values(), ids=list(CONTRADICTORY))
def test_values_that_contradict_each_other_are_refused_in_a_sentence(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(HelmRenderError) as refusal:
        render(changes)
    assert sentence in str(refusal.value)
    assert str(refusal.value).endswith(".")


def test_without_prefill_workers_the_store_may_be_away() -> None:
    documents = render({"components": {"prefill": {"replicas": 0}, "kvstore": {"replicas": 0}}})
    assert documents.one("Deployment", "kvstore")["spec"]["replicas"] == 0
