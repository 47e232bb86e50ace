"""What a live cluster did with some requests, in a form that can be kept and fitted again. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Served:
    """One request; seconds since the first one of its load was due."""

    at: float
    prompt: int
    answer: int
    ttft: float
    itl: float
    """Mean between its tokens."""


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """What a worker says of itself: the coefficients of its steps, and its limits."""

    fixed: float
    per_token: float
    per_token_context: float
    per_context: float
    num_blocks: int
    max_running: int
    step_seconds: float


@dataclass(frozen=True, slots=True)
class Observed:
    """One run."""

    layers: int
    kv_heads: int
    head_dim: int
    block_size: int
    workers: Mapping[str, WorkerFigures]
    """By service, as they were at the end of the load that is fitted."""
    loads: Mapping[float, Sequence[Served]]
    """By share of the capacity of prefill alone."""

    def as_json(self) -> dict[str, Any]:
        loads = {str(load): [asdict(each) for each in rows] for load, rows in self.loads.items()}
        workers = {service: asdict(each) for service, each in self.workers.items()}
        shape = (self.layers, self.kv_heads, self.head_dim, self.block_size)
        return {"shape": shape, "workers": workers, "loads": loads}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        workers = {service: WorkerFigures(**each) for service, each in found["workers"].items()}
        loads = {float(load): [Served(**each) for each in rows] for load, rows in found["loads"].items()}
        layers, kv_heads, head_dim, block_size = found["shape"]
        return cls(layers, kv_heads, head_dim, block_size, workers, loads)


def means(rows: Sequence[Served]) -> tuple[float, float]:
    """(TTFT, ITL)."""
    return fmean(row.ttft for row in rows), fmean(row.itl for row in rows)
