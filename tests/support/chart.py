"""The Helm chart, rendered by Helm's own engine: values in, Kubernetes documents out. No cluster, no network."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "diptych"
RELEASE = "west"
SERVICES = ("gateway", "scheduler", "prefill", "decode", "kvstore")

Document = dict[str, Any]
"""A YAML tree; Kubernetes' schemas check its shape, not Python's types."""


def overlay(base: Mapping[str, object], top: Mapping[str, object]) -> dict[str, object]:
    """`top` over `base`, mapping by mapping; neither is changed."""
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        merged[key] = overlay(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def values(changes: Mapping[str, object] | None = None) -> dict[str, object]:
    """The least that the chart asks for, and `changes`."""
    return overlay({"token": {"existingSecret": "shared-token"}}, changes or {})


def component(name: str, **fields: object) -> dict[str, object]:
    """Values that change one component."""
    return {"components": {name: fields}}


@dataclass(frozen=True)
class Documents:
    """What one rendering made."""

    all: list[Document]

    def kinds(self) -> set[tuple[str, str]]:
        """(kind, name without the release) of each document."""
        return {(document["kind"], document["metadata"]["name"].removeprefix(f"{RELEASE}-")) for document in self.all}

    def one(self, kind: str, name: str) -> Document:
        found: Document
        (found,) = [d for d in self.all if (d["kind"], d["metadata"]["name"]) == (kind, f"{RELEASE}-{name}")]
        return found

    def pod(self, name: str) -> Document:
        pod: Document = self.one("Deployment", name)["spec"]["template"]["spec"]
        return pod

    def container(self, name: str) -> Document:
        """The container that runs the component."""
        container: Document
        (container,) = self.pod(name)["containers"]
        return container

    def environment(self, name: str) -> dict[str, str]:
        """Variables of a component that have a plain value."""
        return {variable["name"]: variable["value"] for variable in self.container(name)["env"] if "value" in variable}


def render(changes: Mapping[str, object] | None = None) -> Documents:
    """Raises HelmError if the schema or a validation refuses the values."""
    with Chart.load(CHART) as chart:
        files = chart.render(values(changes), name=RELEASE, namespace="serving")
    texts = [text for path, text in sorted(files.items()) if path.endswith(".yaml")]
    # The C parser reads as the pure one does, ten times as fast.
    return Documents([document for text in texts for document in yaml.load_all(text, yaml.CSafeLoader) if document])
