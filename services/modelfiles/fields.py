"""Typed reads from a JSON object or GGUF metadata, so that a bad value is an error naming its field.

Knows nothing of what the fields mean.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from services.modelfiles.errors import ModelError


@dataclass(frozen=True, slots=True)
class Fields:
    """Named values from one origin. A null field counts as absent, and absent without a default is an error."""

    values: Mapping[str, object]
    origin: str
    """What errors call the place: a file name."""

    def get(self, name: str) -> object:
        return self.values.get(name)

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self._present(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelError(f"{self.origin}: {name} must be a positive whole number")
        return value

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 0."""
        value = self._present(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ModelError(f"{self.origin}: {name} must be a whole number")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self._present(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ModelError(f"{self.origin}: {name} must be a positive number")
        return float(value)

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._present(name, default)
        if not isinstance(value, bool):
            raise ModelError(f"{self.origin}: {name} must be true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._present(name, default)
        if not isinstance(value, str):
            raise ModelError(f"{self.origin}: {name} must be a string")
        return value

    def fields(self, name: str) -> "Fields":
        """A nested object; an empty one if it is absent."""
        value = self._present(name, {})
        if not isinstance(value, Mapping):
            raise ModelError(f"{self.origin}: {name} must be an object")
        return Fields(value, f"{self.origin}: {name}")

    def ids(self, name: str) -> frozenset[int]:
        """Token ids written as one number or a list; empty if absent."""
        value = self._present(name, [])
        listed = value if isinstance(value, list) else [value]
        if any(isinstance(item, bool) or not isinstance(item, int) for item in listed):
            raise ModelError(f"{self.origin}: {name} must be a token id or a list of them")
        return frozenset(listed)

    def _present(self, name: str, default: object) -> object:
        value = self.values.get(name)
        if value is None:
            value = default
        if value is None:
            raise ModelError(f"{self.origin}: {name} is missing")
        return value


def read_json(path: Path) -> Fields:
    """The JSON object in `path`. Raises `ModelError` if it is missing or not one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{path.name} is missing") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path.name} is not valid JSON") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path.name} must hold a JSON object")
    return Fields(value, path.name)


def read_json_if_present(path: Path) -> Fields:
    """As `read_json`; no fields if there is no such file."""
    return read_json(path) if path.is_file() else Fields({}, path.name)
