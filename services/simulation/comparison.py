"""Policies beside one another: the same trace at several loads of one measured capacity."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context

from services.scheduler.policies import POLICIES
from services.simulation.child import end_with_parent
from services.simulation.cluster import Cluster, Pools
from services.simulation.outcome import Figures, Run, figures
from services.simulation.profile import Profile
from services.simulation.traces import Trace, at_rate

OURS = "ours"
UNSPLIT = "unsplit_chunked"
POLICY_NAMES = (OURS, "random", "least_load", "cache_aware_local", UNSPLIT)
LOADS = (0.5, 0.7, 0.85, 1.0, 1.2)
ITL_LIMITS = (0.1, 0.2, 0.3)
"""Seconds, as in Mooncake's evaluation (arXiv 2407.00079)."""
PUBLISHED = {"random": 19.65 / 3.07, "least_load": 5.27 / 3.07, "cache_aware_local": 3.58 / 3.07}
"""Mean TTFT over that of the global cache-aware policy on the conversation trace, from the same paper."""
SATURATION = 20.0
"""Requests per second and machine that no cluster here keeps up with."""

Doing = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Case:
    """One run of a comparison."""

    load: float
    policy: str
    step_seconds: float = 0.0
    """Of workers that do both; 0: the profile's."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all runs of a comparison share."""

    profile: Profile
    trace: Trace
    prefill: int
    decode: int

    @property
    def limits(self) -> tuple[float, ...]:
        return tuple(sorted({*ITL_LIMITS, self.profile.objective.itl}))

    def pools(self, policy: str) -> Pools:
        """As many machines for each; without a split all do both."""
        if policy.startswith("unsplit"):
            return Pools(0, 0, self.prefill + self.decode)
        return Pools(self.prefill, self.decode)


def simulated(setting: Setting, policy: str, per_second: float) -> Run:
    """The trace at one rate under one policy."""
    trace = at_rate(setting.trace, per_second)
    cluster = Cluster(setting.profile, setting.pools(policy), POLICIES[policy], trace, setting.limits)
    cluster.run()
    bins: Counter[int] = Counter()
    busy: dict[str, list[float]] = {}
    for machine in cluster.machines.values():
        bins.update(machine.worker.gaps.bins)
        kind = machine.worker.address.partition("-")[0]
        busy.setdefault(kind, []).append(machine.worker.busy_seconds / cluster.now)
    shares = {kind: sum(each) / len(each) for kind, each in busy.items()}
    return Run(policy, cluster.outcomes, bins, setting.limits, shares)


def capacity(setting: Setting, policy: str = OURS) -> float:
    """Requests per second that are answered while more wait than can be served: between the first tenth of all that
    end and the last."""
    run = simulated(setting, policy, SATURATION * (setting.prefill + setting.decode))
    ends = sorted(each.ended for each in run.outcomes)
    first, last = len(ends) // 10, len(ends) - 1 - len(ends) // 10
    return (last - first) / max(ends[last] - ends[first], 1e-9)


def compared(setting: Setting, loads: Sequence[float], policies: Sequence[str], doing: Doing) -> Figures:
    """Every policy at every load; `capacity` is that of the first of them. One process for each processor."""
    doing("measuring the capacity")
    most = capacity(setting, policies[0])
    cases = [Case(load, policy) for load in loads for policy in policies]
    if UNSPLIT in policies:
        other = [limit for limit in setting.limits if limit != setting.profile.whole.step_seconds]
        cases += [Case(load, UNSPLIT, limit) for load in loads for limit in other]
    rows: dict[Case, Figures] = {}
    with ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=end_with_parent) as processes:
        running = {processes.submit(_figures, setting, case, most): case for case in cases}
        for done in as_completed(running):
            rows[running[done]] = done.result()
            doing(
                f"{len(rows)} of {len(cases)} runs, the latest at load {running[done].load:g}: {running[done].policy}"
            )
    return {"capacity_per_second": most, "loads": [_at(load, policies, rows) for load in loads]}


def _figures(setting: Setting, case: Case, most: float) -> Figures:
    if case.step_seconds:
        profile = replace(setting.profile, whole=setting.profile.whole.cut_to(case.step_seconds))
        setting = replace(setting, profile=profile)
    return figures(simulated(setting, case.policy, case.load * most), setting.profile.objective)


def _at(load: float, policies: Sequence[str], rows: Mapping[Case, Figures]) -> Figures:
    """What was found at one load."""
    usual = {policy: rows[Case(load, policy)] for policy in policies}
    found: Figures = {"load": load, "policies": usual, "ratios": ratios(usual, policies[0])}
    if UNSPLIT in policies:
        found["best_unsplit"] = best([row for case, row in rows.items() if (case.load, case.policy) == (load, UNSPLIT)])
    return found


def ratios(rows: Mapping[str, Figures], ours: str) -> Figures:
    """Mean TTFT over that of `ours`, beside the published figure where there is one."""
    own = float(str(rows[ours]["mean_ttft_seconds"]))
    return {
        policy: {
            "mean_ttft_ratio": float(str(row["mean_ttft_seconds"])) / own if own else 0.0,
            "published": PUBLISHED.get(policy),
        }
        for policy, row in rows.items()
        if policy != ours
    }


def best(rows: Sequence[Figures]) -> Figures:
    """Goodput by limit and mean TTFT, each of whichever run is best in it: chunks as long as a limit allows meet it."""
    goodputs = [row["goodput_by_itl_limit"] for row in rows]
    found: dict[str, float] = {}
    for each in goodputs:
        assert isinstance(each, dict)
        found = {limit: max(goodput, found.get(limit, 0.0)) for limit, goodput in each.items()}
    return {
        "goodput_by_itl_limit": found,
        "mean_ttft_seconds": min(float(str(row["mean_ttft_seconds"])) for row in rows),
    }
