"""A profile of this machine from one load, and what it predicts of others. Pure.

Three numbers are fitted beside what the workers say of themselves, all at one load:

    prefill scale   how much slower prefill's steps are beside the other processes of its core than its cost says
    decode scale    the same for decode's steps, from the mean time between tokens
    request         seconds of a request outside the workers, from the mean time to the first token
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from calibration.observed import Observed, Served, WorkerFigures, means
from services.core.model_config import KVFormat
from services.core.step_cost import StepCost
from services.scheduler.policies import Named
from services.scheduler.policy import OURS
from services.simulation.cluster import Cluster, Pools
from services.simulation.outcome import Outcome
from services.simulation.profile import Objective, Profile, Wires, WorkerModel
from services.simulation.traces import TraceRequest

SCALES = [0.7 + 0.05 * step for step in range(35)]
NEAR = 4e9
"""Bytes per second of one core's copy into shared memory and its check; hand-overs here are of few megabytes."""
LATENCY = 0.001


@dataclass(frozen=True, slots=True)
class Fit:
    """The numbers that were fitted."""

    prefill_scale: float
    decode_scale: float
    request: float


def fitted(observed: Observed, load: float) -> Fit:
    """From the requests of one load."""
    rows = observed.loads[load]
    decode = _decode_scale(observed, rows, Fit(1.0, 1.0, 0.0))
    best = min(SCALES, key=lambda scale: _misfit(_residuals(observed, rows, Fit(scale, decode, 0.0))))
    fit = Fit(best, decode, _outside(_residuals(observed, rows, Fit(best, decode, 0.0))))
    return replace(fit, decode_scale=_decode_scale(observed, rows, fit))


def predictions(observed: Observed, fit: Fit) -> dict[str, dict[str, Any]]:
    """By load: measured and predicted means, and the error as a share of the measured one."""
    found = {}
    for load, rows in observed.loads.items():
        measured, predicted = means(rows), _simulated(observed, rows, fit)
        found[f"{load:g}"] = {
            name: {"live": live, "simulated": simulated, "error": simulated / live - 1}
            for name, live, simulated in zip(("mean_ttft", "mean_itl"), measured, predicted, strict=True)
        } | {"requests": len(rows)}
    return found


def profile(observed: Observed, fit: Fit) -> Profile:
    """This machine: one core of prefill, one of decode."""
    kv = KVFormat("float16", observed.block_size, observed.layers, observed.kv_heads, observed.head_dim)
    prefill = _model(observed.workers["prefill"], fit.prefill_scale)
    decode = _model(observed.workers["decode"], fit.decode_scale)
    wires = Wires(nic=NEAR, near=NEAR, latency=LATENCY, request=fit.request, token=0.0)
    return Profile(
        "local", prefill, decode, decode, wires, kv, observed.block_size, 1 << 14, Objective(1.0, 0.1), (1, 1)
    )  # fmt: skip


def _model(worker: WorkerFigures, scale: float) -> WorkerModel:
    cost = StepCost(worker.fixed, worker.per_token, worker.per_token_context, worker.per_context).scaled(scale)
    # The scale is of a machine that others use too: chunks are cut to the time that the worker itself predicts.
    return WorkerModel(cost, worker.num_blocks, worker.max_running, worker.step_seconds * scale)


def outcomes(observed: Observed, rows: Sequence[Served], fit: Fit) -> Sequence[Outcome]:
    """What the simulator makes of these requests."""
    trace = [TraceRequest(row.at, row.prompt, row.answer) for row in rows]
    place = Named(OURS, split="always")
    cluster = Cluster(profile(observed, fit), Pools(1, 1), place, trace, ())
    cluster.run()
    return cluster.outcomes


def _simulated(observed: Observed, rows: Sequence[Served], fit: Fit) -> tuple[float, float]:
    found = outcomes(observed, rows, fit)
    return fmean(each.ttft for each in found), fmean(each.itl for each in found)


def _residuals(observed: Observed, rows: Sequence[Served], fit: Fit) -> list[float]:
    """Seconds by which each first token came later than is simulated."""
    found = outcomes(observed, rows, fit)
    return [row.ttft - each.ttft for row, each in zip(rows, found, strict=True)]


def _outside(residuals: Sequence[float]) -> float:
    """Seconds outside the workers, which move every first token by as much; none can be won back there."""
    return max(fmean(residuals), 0.0)


def _misfit(residuals: Sequence[float]) -> float:
    """Mean square of what is left over."""
    outside = _outside(residuals)
    return fmean((each - outside) ** 2 for each in residuals)


def _decode_scale(observed: Observed, rows: Sequence[Served], fit: Fit) -> float:
    """The one with which the mean time between tokens is right, beside the other numbers of `fit`."""
    return _nearest(lambda scale: _simulated(observed, rows, replace(fit, decode_scale=scale))[1], means(rows)[1])


def _nearest(figure: Callable[[float], float], wanted: float) -> float:
    """The scale whose figure, which grows with it, is the wanted one; by bisection."""
    low, high = SCALES[0] / 2, SCALES[-1] * 2
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if figure(middle) < wanted else (low, middle)
    return (low + high) / 2
