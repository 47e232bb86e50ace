"""Reading a JSON body: typed fields, each wrong type an error naming the field. Knows no API."""

import json
import math
from collections.abc import Mapping
from typing import NoReturn

from services.core.errors import InvalidRequest

Json = Mapping[str, object]

MAX_ID_DIGITS = 10


def parsed(body: bytes) -> Json:
    """The object in `body`. Raises InvalidRequest if it is not one, is not UTF-8, or nests too deep."""
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except InvalidRequest:
        raise
    except UnicodeDecodeError:
        raise InvalidRequest("the body is not valid UTF-8") from None
    except RecursionError:
        raise InvalidRequest("the body nests too deep") from None
    except ValueError:
        raise InvalidRequest("the body is not valid JSON") from None
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object")
    return value


class Fields:
    """Typed access to an object. A field that is null is absent, as clients send it."""

    def __init__(self, values: Json) -> None:
        self._values = values

    def get(self, name: str) -> object:
        return self._values.get(name)

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def text(self, name: str, default: str) -> str:
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise InvalidRequest(f"{name} must be a string", field=name)
        return value

    def flag(self, name: str) -> bool:
        value = self._values.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise InvalidRequest(f"{name} must be true or false", field=name)
        return value

    def number(self, name: str, default: float) -> float:
        """A whole number too large for a float is infinite, which no range admits."""
        value = self._values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidRequest(f"{name} must be a number", field=name)
        try:
            return float(value)
        except OverflowError:
            return math.inf

    def count(self, name: str) -> int | None:
        value = self._values.get(name)
        return None if value is None else whole(value, name)

    def texts(self, name: str) -> tuple[str, ...]:
        """A string or a list of strings; empty if absent."""
        value = self._values.get(name)
        if value is None:
            return ()
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, str) for item in items):
            raise InvalidRequest(f"{name} must be a string or a list of strings", field=name)
        return tuple(items)

    def ids(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers; empty if absent."""
        value = self._values.get(name)
        return () if value is None else tuple(whole(item, name) for item in listed(value, name))

    def numbers_by_id(self, name: str) -> tuple[tuple[int, float], ...]:
        """An object from token ids, which JSON writes as strings, to numbers; empty if absent."""
        found: dict[int, float] = {}
        for key in (entries := self.nested(name))._values:
            if not (key.isascii() and key.isdigit() and len(key) <= MAX_ID_DIGITS):
                raise InvalidRequest(f"{name} must be an object from token ids to numbers", field=name)
            try:
                found[int(key)] = entries.number(key, 0.0)
            except InvalidRequest:
                # The client's key is its own text, and no field of ours.
                raise InvalidRequest(f"every value of {name} must be a number", field=name) from None
        return tuple(found.items())

    def nested(self, name: str) -> "Fields":
        """An object; an empty one if absent."""
        value = self._values.get(name)
        if value is None:
            return Fields({})
        return Fields(mapping(value, name))


def whole(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{name} must be a whole number", field=name)
    return value


def listed(value: object, name: str) -> list[object]:
    if not isinstance(value, list):
        raise InvalidRequest(f"{name} must be a list", field=name)
    return value


def mapping(value: object, name: str) -> Json:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{name} must be an object", field=name)
    return value


def _no_constant(_: str) -> NoReturn:
    raise InvalidRequest("NaN and Infinity are not JSON numbers; a number in the body is one of them")
