"""What the chart renders: valid for Kubernetes, and in step with the services it starts."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
from helm_python import lint
from kubernetes_validate import validate

from services.cli.__main__ import app
from services.runtime.metrics import INSTRUMENTS
from services.runtime.server import READY
from services.runtime.settings import ServiceSettings
from tests.support.chart import CHART, ROOT, SERVICES, component, overlay, render, values

KUBERNETES = "1.37"

ALL_ON = {
    "nats": {"enabled": False, "urlSecret": "bus"},
    "token": {"existingSecret": "", "value": "a-token-of-the-test"},
    "telemetry": {"otlpEndpoint": "http://collector:4317"},
    "images": {"pullSecrets": ["mine"]},
    "models": {"volume": "claim", "env": {"PIP_INDEX_URL": "file:///mirror"}, "envSecret": "keys"},
    "arena": {"nodePath": "/dev/shm"},
    "defaults": {
        "autoscaler": {"enabled": True},
        "disruption": {"maxUnavailable": "50%"},
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
        ],
        "podAnnotations": {"team": "serving"},
    },
    "components": {"prefill": {"resources": {"limits": {"nvidia.com/gpu": 1}}}},
}
FILLED_CLAIM = {
    "models": {"volume": "claim", "reference": "", "claim": {"existing": "weights", "accessMode": "ReadOnlyMany"}}
}


@pytest.mark.parametrize("changes", [{}, ALL_ON, FILLED_CLAIM], ids=["defaults", "all on", "filled claim"])
def test_every_document_is_valid_for_kubernetes(changes: dict[str, object]) -> None:
    for document in render(changes).all:
        validate(document, KUBERNETES, strict=True)


def test_helm_finds_nothing_to_warn_about() -> None:
    report = lint(CHART, values(), strict=True)
    assert report["errors"] == []
    assert [message for message in report["messages"] if message["severity"] > 1] == []


def test_each_service_gets_a_deployment_a_service_and_a_disruption_budget_and_no_autoscaler() -> None:
    per_service = {(kind, name) for kind in ("Deployment", "Service", "PodDisruptionBudget") for name in SERVICES}
    assert render().kinds() == per_service | {(kind, "nats") for kind in ("Deployment", "Service", "ConfigMap")}


@pytest.mark.parametrize(("grown", "other"), [("prefill", "decode"), ("decode", "prefill")])
def test_prefill_and_decode_scale_separately(grown: str, other: str) -> None:
    limits = {"memory": "9Gi", "nvidia.com/gpu": 1}
    before, after = render(), render(component(grown, replicas=7, resources={"limits": limits}))
    assert after.one("Deployment", grown)["spec"]["replicas"] == 7
    assert after.container(grown)["resources"]["limits"] == limits
    assert after.one("Deployment", other) == before.one("Deployment", other)


def test_an_autoscaled_pool_leaves_its_replicas_to_the_autoscaler() -> None:
    documents = render(component("decode", replicas=3, autoscaler={"enabled": True, "min": 2, "max": 9}))
    scaler = documents.one("HorizontalPodAutoscaler", "decode")["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 9)
    assert "replicas" not in documents.one("Deployment", "decode")["spec"]
    assert ("HorizontalPodAutoscaler", "prefill") not in documents.kinds()


def test_autoscalers_follow_gauges_of_work_that_their_own_service_exports() -> None:
    share_of_capacity = {"diptych_blocks_total", "diptych_blocks_used", "diptych_blocks_cached"}
    for name in ("gateway", "scheduler", "prefill", "decode"):
        documents = render(component(name, autoscaler={"enabled": True}))
        (metric,) = documents.one("HorizontalPodAutoscaler", name)["spec"]["metrics"]
        gauges = {i.name for i in INSTRUMENTS if i.kind == "gauge" and not i.labels and name in i.services}
        assert metric["pods"]["metric"]["name"] in gauges - share_of_capacity


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_runs_its_service_from_the_image_that_can(name: str) -> None:
    container = render().container(name)
    assert container["args"] == [f"services.{name}"]
    assert container["image"].startswith("diptych-worker:" if name in ("prefill", "decode") else "diptych-control:")


@pytest.mark.parametrize("name", SERVICES)
def test_probes_ask_the_health_service_where_the_process_listens(name: str) -> None:
    documents = render()
    container = documents.container(name)
    port = int(documents.environment(name)[f"DIPTYCH_{name.upper()}__LISTEN"].rpartition(":")[2])
    assert container["startupProbe"]["grpc"] == container["livenessProbe"]["grpc"] == {"port": port, "service": ""}
    assert container["readinessProbe"]["grpc"] == {"port": port, "service": READY}
    assert {"name": "grpc", "containerPort": port} in container["ports"]


@pytest.mark.parametrize("seconds", [5, 91, 600])
def test_the_startup_probe_allows_all_the_seconds_that_loading_may_take(seconds: int) -> None:
    probe = render(component("decode", startupSeconds=seconds)).container("decode")["startupProbe"]
    assert seconds <= probe["periodSeconds"] * probe["failureThreshold"] < seconds + probe["periodSeconds"]


@pytest.mark.parametrize(("pre_stop", "drain"), [(0, 0), (0, 60), (5, 60), (20, 0.5), (15, 1800)])
def test_the_grace_period_outlasts_the_pause_and_the_drain(pre_stop: int, drain: float) -> None:
    own = {"preStopSeconds": pre_stop, "settings": {"drain_seconds": drain}}
    documents = render({"components": dict.fromkeys(SERVICES, own)})
    for name in SERVICES:
        container = documents.container(name)
        paused = container["lifecycle"]["preStop"]["sleep"]["seconds"] if pre_stop else 0
        drained = float(documents.environment(name)[f"DIPTYCH_{name.upper()}__DRAIN_SECONDS"])
        assert (paused, drained) == (pre_stop, drain)
        assert documents.pod(name)["terminationGracePeriodSeconds"] > paused + drained


def test_clients_meet_one_address_and_workers_are_dialled_one_by_one() -> None:
    documents = render()
    services = {name: documents.one("Service", name)["spec"] for name in SERVICES}
    assert services["gateway"]["type"] == "ClusterIP"
    assert {port["name"]: port["port"] for port in services["gateway"]["ports"]} == {"grpc": 50051, "http": 8000}
    for name in ("scheduler", "prefill", "decode", "kvstore"):
        assert services[name]["clusterIP"] == "None"
        assert documents.environment(name)[f"DIPTYCH_{name.upper()}__ADVERTISE"].startswith("$(POD_IP):")


@pytest.mark.parametrize("name", [*SERVICES, "nats"])
def test_pods_run_without_privileges_on_a_root_that_cannot_be_written(name: str) -> None:
    pod = render().pod(name)
    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]
    assert not pod["enableServiceLinks"]
    for container in (*pod["containers"], *pod.get("initContainers", ())):
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert not container["securityContext"]["allowPrivilegeEscalation"]


@pytest.mark.parametrize("name", ["gateway", "prefill", "decode"])
def test_the_served_model_is_the_one_that_was_pulled_and_cannot_be_written(name: str) -> None:
    documents = render({"models": {"reference": "hf:owner/model"}})
    (pull,) = documents.pod(name)["initContainers"]
    path = documents.environment(name)[f"DIPTYCH_{name.upper()}__MODEL"]
    assert pull["args"] == ["hf:owner/model", path]
    (mount,) = [m for m in documents.container(name)["volumeMounts"] if m["name"] == "models"]
    assert mount["readOnly"]
    assert path.startswith(mount["mountPath"])


def test_what_was_pulled_appears_where_the_service_looks_also_when_it_was_there_before(tmp_path: Path) -> None:
    prepared, served = tmp_path / "prepared", tmp_path / "below" / "served"
    prepared.mkdir()
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "$*" = "-m services.cli model pull smollm2" ] && echo {prepared}\n')
    python.chmod(0o755)
    (pull,) = render().pod("decode")["initContainers"]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOSTNAME": "west-decode-0"}
    for _ in range(2):
        subprocess.run([*pull["command"], "smollm2", str(served)], env=environment, check=True)
        assert served.resolve() == prepared
        assert [path.name for path in served.parent.iterdir()] == ["served"]


def test_the_pull_is_a_command_of_the_cli() -> None:
    model: Any = typer.main.get_command(app)
    assert [parameter.name for parameter in model.commands["model"].commands["pull"].params] == ["name"]


def test_a_filled_claim_is_only_read() -> None:
    documents = render(FILLED_CLAIM)
    for name in ("gateway", "prefill", "decode"):
        assert "initContainers" not in documents.pod(name)
        (volume,) = [v for v in documents.pod(name)["volumes"] if v["name"] == "models"]
        assert volume["persistentVolumeClaim"] == {"claimName": "weights", "readOnly": True}


def test_the_token_is_never_written_into_a_pod() -> None:
    secret = "a-token-of-the-test"
    for document in render(overlay(ALL_ON, {"token": {"value": secret}})).all:
        assert secret not in str(document)


@pytest.mark.parametrize("changes", [{}, ALL_ON], ids=["defaults", "all on"])
def test_no_container_has_a_variable_with_a_secret_in_its_arguments_or_probes(changes: dict[str, object]) -> None:
    documents = render(changes)
    for deployment in (document for document in documents.all if document["kind"] == "Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            secret: list[str] = []
            for variable in container["env"]:
                made_of_one = any(f"$({name})" in variable.get("value", "") for name in secret)
                if made_of_one or "secretKeyRef" in variable.get("valueFrom", {}):
                    secret.append(variable["name"])
            assert secret or container in pod.get("initContainers", ())
            seen_by_all = str({field: value for field, value in container.items() if field != "env"})
            assert [name for name in secret if name in seen_by_all] == []


def test_nats_asks_for_the_token_that_every_service_brings() -> None:
    documents = render()
    token = documents.container("nats")["env"][0]
    for name in SERVICES:
        prefix = f"DIPTYCH_{name.upper()}__"
        brought = {variable["name"]: variable for variable in documents.container(name)["env"]}
        assert brought[f"{prefix}TOKEN"]["valueFrom"] == token["valueFrom"]
        # Kubernetes expands only what stands before.
        assert list(brought).index(f"{prefix}TOKEN") < list(brought).index(f"{prefix}NATS_URL")
        assert brought[f"{prefix}NATS_URL"]["value"] == f"nats://$({prefix}TOKEN)@west-nats:4222"


def test_chart_and_package_have_the_same_version() -> None:
    version = next(line for line in (ROOT / "pyproject.toml").read_text().splitlines() if line.startswith("version"))
    assert version.partition(" = ")[2] in (CHART / "Chart.yaml").read_text()


def test_spans_go_to_the_endpoint_under_its_standard_name() -> None:
    endpoint = ServiceSettings.model_fields["otlp_endpoint"].validation_alias
    documents = render(ALL_ON)
    for name in SERVICES:
        assert documents.environment(name)[str(endpoint)] == "http://collector:4317"


def test_a_kvstores_blocks_are_in_memory_of_its_pod_with_room_for_all_of_them() -> None:
    documents = render(component("kvstore", settings={"capacity_bytes": 3 << 30}))
    (volume,) = [volume for volume in documents.pod("kvstore")["volumes"] if volume["name"] == "arena"]
    assert volume["emptyDir"]["medium"] == "Memory"
    assert int(volume["emptyDir"]["sizeLimit"]) > (3 << 30)
    assert {"name": "arena", "mountPath": "/arena"} in documents.container("kvstore")["volumeMounts"]
    assert documents.environment("kvstore")["DIPTYCH_KVSTORE__ARENA_DIRECTORY"] == "/arena"
    assert "arena" not in str(documents.pod("decode"))


def test_memory_of_the_node_is_where_store_and_workers_see_the_same_files() -> None:
    documents = render({"arena": {"nodePath": "/dev/shm"}})
    for name in ("kvstore", "prefill", "decode"):
        (volume,) = [volume for volume in documents.pod(name)["volumes"] if volume["name"] == "arena"]
        assert volume["hostPath"] == {"path": "/dev/shm", "type": "Directory"}
        assert {"name": "arena", "mountPath": "/arena"} in documents.container(name)["volumeMounts"]
    assert "arena" not in str(documents.pod("gateway"))
