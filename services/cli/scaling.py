"""What a wish for other pool sizes starts and stops. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from services.cli.errors import CommandError

LEAST = {"kvstore": 0, "decode": 1, "prefill": 0, "scheduler": 1}
"""The pools that can be scaled, in the order in which they grow, and the sizes below which nothing is answered."""
MOST = 64
"""Of one pool on one machine."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Names, such as `decode-1`, in the order in which they are started, and to be drained."""

    starting: tuple[str, ...]
    stopping: tuple[str, ...]


def parsed(words: Sequence[str]) -> dict[str, int]:
    """Service to size, of words such as `decode=3`. Raises CommandError."""
    wish: dict[str, int] = {}
    for word in words:
        service, _, size = word.partition("=")
        if service not in LEAST:
            raise CommandError(f"only {', '.join(LEAST)} can be scaled, as in decode=3")
        if service in wish:
            raise CommandError(f"{service} is given twice")
        if not size.isascii() or not size.isdigit() or len(size) > 4:
            raise CommandError(f"{service} needs a whole number, as in {service}=2")
        wish[service] = int(size)
    if not wish:
        raise CommandError("say what to scale, as in prefill=2 decode=3")
    return wish


def planned(living: Collection[str], wish: Mapping[str, int]) -> Plan:
    """New ones take the lowest free numbers; the highest leave first. Raises CommandError for what answers nothing."""
    numbers = {service: sorted(_numbers(living, service)) for service in LEAST}
    _require_sense({service: wish.get(service, len(numbers[service])) for service in LEAST})
    starting: list[str] = []
    stopping: list[str] = []
    for service, size in wish.items():
        have = numbers[service]
        free = [number for number in range(size + len(have)) if number not in have]
        starting += [f"{service}-{number}" for number in free[: max(0, size - len(have))]]
        stopping += [f"{service}-{number}" for number in reversed(have[size:])]
    order = list(LEAST)
    return Plan(tuple(sorted(starting, key=lambda name: order.index(service_of(name)))), tuple(stopping))


def service_of(name: str) -> str:
    """Of a process."""
    return name.rpartition("-")[0]


def number_of(name: str) -> int:
    """Of a process in its pool, from 0."""
    return int(name.rpartition("-")[2])


def _numbers(living: Collection[str], service: str) -> list[int]:
    return [number_of(name) for name in living if service_of(name) == service]


def _require_sense(sizes: Mapping[str, int]) -> None:
    for service, size in sizes.items():
        if size < LEAST[service]:
            raise CommandError(f"{service} must be at least {LEAST[service]}: without one nothing is answered")
        if size > MOST:
            raise CommandError(f"{service} can be at most {MOST}")
    if sizes["prefill"] and not sizes["kvstore"]:
        raise CommandError("kvstore must be at least 1, unless prefill is 0")
