"""Workers of one kind as columns of numbers, so that a thousand of them are weighed in a few operations.

The rows are in no order; whoever reads them picks by value and breaks ties by `mark`.
"""

from collections.abc import Iterable, Set
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.core.errors import KVIncompatible
from services.core.model_config import KVFormat
from services.core.step_cost import StepCost
from services.scheduler.cost_model import Costs, Floats

COLUMNS: tuple[str, ...] = (
    *("fixed", "per_token", "per_token_context", "per_context", "step", "pace"),
    *("in_flight", "awaiting", "max_running", "contexts", "blocks_total", "blocks_used", "busy_until", "ready"),
)
PLACE = {name: index for index, name in enumerate(COLUMNS)}


class Kind(NamedTuple):
    """Workers that may stand for one another, as far as what they can be paired with goes."""

    service: str
    fingerprint: str
    format: str
    stores: frozenset[str]


class WorkerTable:
    """Columns of the workers of one kind. All numbers are float64; times are on the scheduler's clock."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.block_size, self.block_bytes = _block(kind.format)
        self.addresses: list[str] = []
        self._row: dict[str, int] = {}
        self._numbers: Floats = np.zeros((len(COLUMNS), 8))
        self._marks: NDArray[np.uint64] = np.zeros(8, np.uint64)
        self._near: NDArray[np.intp] = np.zeros(8, np.intp)
        self._near_sets: dict[frozenset[str], int] = {}

    def __len__(self) -> int:
        return len(self.addresses)

    def row(self, address: str) -> int:
        """Where a worker's numbers are, until the next `add` or `remove`."""
        return self._row[address]

    def rows(self, addresses: Iterable[str]) -> list[int]:
        """Those of `addresses` that are here."""
        return [self._row[each] for each in addresses if each in self._row]

    def add(self, address: str) -> None:
        """A new worker; all its numbers are 0."""
        size = len(self.addresses)
        if size == self._marks.size:
            self._numbers = np.concatenate((self._numbers, np.zeros_like(self._numbers)), axis=1)
            self._marks = np.concatenate((self._marks, np.zeros_like(self._marks)))
            self._near = np.concatenate((self._near, np.zeros_like(self._near)))
        self._row[address] = size
        self.addresses.append(address)
        self._numbers[:, size] = 0.0
        self._marks[size] = int.from_bytes(blake2b(address.encode(), digest_size=8).digest(), "little")

    def remove(self, address: str) -> None:
        """The worker is gone; the last one takes its row."""
        row, last = self._row.pop(address), len(self.addresses) - 1
        moved = self.addresses.pop()
        if row != last:
            self.addresses[row] = moved
            self._row[moved] = row
            self._numbers[:, row] = self._numbers[:, last]
            self._marks[row] = self._marks[last]
            self._near[row] = self._near[last]

    def column(self, name: str) -> Floats:
        """All workers' numbers of one name; writing to them changes them."""
        return self._numbers[PLACE[name], : len(self.addresses)]

    def get(self, address: str, name: str) -> float:
        return float(self._numbers[PLACE[name], self._row[address]])

    def put(self, address: str, **numbers: float) -> None:
        row = self._row[address]
        for name, number in numbers.items():
            self._numbers[PLACE[name], row] = number

    def put_cost(self, address: str, cost: StepCost, step_seconds: float) -> None:
        self.put(
            address,
            fixed=cost.fixed,
            per_token=cost.per_token,
            per_token_context=cost.per_token_context,
            per_context=cost.per_context,
            step=step_seconds,
        )

    def put_near(self, address: str, stores: frozenset[str]) -> None:
        """The stores that a worker copies from without a network."""
        self._near[self._row[address]] = self._near_sets.setdefault(stores, len(self._near_sets))

    def costs(self) -> Costs:
        return Costs(
            *(self.column(name) for name in ("fixed", "per_token", "per_token_context", "per_context", "step"))
        )

    def are_near(self, stores: Set[str]) -> NDArray[np.bool_]:
        """Which workers copy from one of `stores` without a network; one look at each set of near stores."""
        known = np.fromiter((not stores.isdisjoint(each) for each in self._near_sets), np.bool_, len(self._near_sets))
        return known[self._near[: len(self.addresses)]]

    def has_room(self) -> bool:
        """Whether some worker is ready and has fewer requests than it runs at a time."""
        return bool(((self.column("ready") > 0) & (self.column("in_flight") < self.column("max_running"))).any())

    def first(self, costs: Floats, request_id: str) -> int | None:
        """Row of the least cost that is finite; None if none is. Equals are spread by rendezvous of the request.

        Rendezvous spreads evenly, and moves few requests when a worker comes or goes (Thaler and Ravishankar, 1998).
        """
        if not costs.size or not np.isfinite(least := costs.min()):
            return None
        equal = np.flatnonzero(costs == least)
        if equal.size == 1:
            return int(equal[0])
        return int(equal[np.argmax(_mixed(self._marks[equal], request_id))])


def _block(kv_format: str) -> tuple[int, int]:
    """Tokens and bytes of a block; a format that is not known here is never handed over, so any numbers will do."""
    try:
        parsed = KVFormat.parsed(kv_format)
    except KVIncompatible:
        return 16, 0
    return parsed.block_size, parsed.block_bytes


def _mixed(marks: NDArray[np.uint64], request_id: str) -> NDArray[np.uint64]:
    """Evenly spread numbers of (worker, request); the finalizer of MurmurHash3."""
    mixed = marks ^ np.uint64(int.from_bytes(blake2b(request_id.encode(), digest_size=8).digest(), "little"))
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        mixed ^= mixed >> np.uint64(33)
        mixed *= np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(33))
