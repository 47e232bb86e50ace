"""Writes what each service's settings may be into the chart's values.schema.json, from the settings classes themselves.

A setting is declared once, in `services/<service>/settings.py`; run `python -m deploy.helm.settings_schema` after a
change there, and the chart refuses a misspelt or impossible value before anything is installed. Knows no values.
"""

import json
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import cast

from services.runtime.settings import ServiceSettings

Json = dict[str, "Json"] | list["Json"] | str | float | bool | None

SCHEMA = Path(__file__).parent / "diptych" / "values.schema.json"
SERVICES = ("gateway", "scheduler", "prefill", "decode", "kvstore")

CHART_SETS = frozenset(
    {"listen", "advertise", "http_listen", "metrics_port", "name", "nats_url", "token", "model", "otlp_endpoint"}
    | {"arena_directory"}
)
"""Fields that templates/_pod.tpl fills in; a second value for one would contradict the first."""
NOT_FOR_CLUSTERS = frozenset({"collector", "exit_with_parent", "profile", "faults"})
"""Fields for a local cluster and its tests."""


def settings_type(service: str) -> type[ServiceSettings]:
    """The settings class of a service. Raises ModuleNotFoundError if there is none."""
    found: type[ServiceSettings] = import_module(f"services.{service}.settings").Settings
    return found


def open_to_operators(settings: type[ServiceSettings]) -> list[str]:
    """The fields that may stand under `settings:` in the chart's values."""
    return [name for name in settings.model_fields if name not in CHART_SETS | NOT_FOR_CLUSTERS]


def with_settings(text: str) -> str:
    """`text`, a values.schema.json, with the definitions of all settings made anew."""
    schema = json.loads(text)
    definitions = schema["definitions"]
    definitions["sharedSettings"] = _definition(ServiceSettings, definitions)
    for service in SERVICES:
        definitions[f"{service}Settings"] = _definition(settings_type(service), definitions)
    return _pretty(schema, 0) + "\n"


def main() -> None:
    SCHEMA.write_text(with_settings(SCHEMA.read_text(encoding="utf-8")), encoding="utf-8")


def _definition(settings: type[ServiceSettings], definitions: dict[str, object]) -> dict[str, object]:
    """Tables within settings (a traffic class) become definitions of their own, under the name of their type."""
    written = settings.model_json_schema(ref_template="#/definitions/{model}")
    definitions.update({name: _terse(table) for name, table in written.get("$defs", {}).items()})
    return _terse(written, open_to_operators(settings))


def _terse(table: dict[str, Json], fields: Iterable[str] | None = None) -> dict[str, object]:
    """What holds for the `fields` of a table (None: all), without titles and what they are by default."""
    declared = cast(dict[str, dict[str, Json]], table["properties"])
    properties = {
        name: {key: value for key, value in declared[name].items() if key not in ("title", "default")}
        for name in fields or declared
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _pretty(value: Json, depth: int) -> str:
    """JSON with everything on one line that fits on one: half as long to read as one key per line."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or len(line) + 2 * depth <= 100:
        return line
    inside = "  " * (depth + 1)
    if isinstance(value, dict):
        items = [f"{inside}{json.dumps(key)}: {_pretty(item, depth + 1)}" for key, item in value.items()]
        return "{\n" + ",\n".join(items) + "\n" + "  " * depth + "}"
    return "[\n" + ",\n".join(inside + _pretty(item, depth + 1) for item in value) + "\n" + "  " * depth + "]"


if __name__ == "__main__":
    main()
