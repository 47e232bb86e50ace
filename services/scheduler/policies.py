"""The placement policies by name, of which all but `ours` are there to be compared with.

    ours                all costs, prefixes wherever they are, split where that is better
    random              any worker with room, drawn by the request's id
    least_load          the prefill worker that is free first, the decode worker with the fewest requests
    cache_aware_local   the prefill worker with the earliest first token, if blocks are never fetched
    unsplit_chunked     all costs, and decode workers prefill by themselves between the steps of their streams

`random`, `least_load` and `cache_aware_local` are the policies that Mooncake was compared with (Qin et al., FAST 2025).
All take the same arguments and give the same answer for the same view.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from services.scheduler.asking import Asking, Split
from services.scheduler.candidates import Scored
from services.scheduler.policy import OURS, Policy, placed
from services.scheduler.story import Placement

Place = Callable[[Asking, str], Placement | None]
"""A policy: the best place now, or None to wait for one; only workers of the model with this fingerprint, if one is
named."""


@dataclass(frozen=True, slots=True)
class Named:
    """A policy as a place-function; what it is bound to wins over the rules of whoever asks."""

    policy: Policy
    split: Split | None = None
    may_fetch: bool = True

    def __call__(self, asking: Asking, fingerprint: str = "") -> Placement | None:
        rules = asking.rules
        bound = replace(rules, split=self.split or rules.split, may_fetch=rules.may_fetch and self.may_fetch)
        return placed(replace(asking, rules=bound), fingerprint, self.policy)


def _by_nothing(scored: Scored) -> Scored:
    """All the same: the tie is broken by the request's id."""
    return replace(scored, cost=scored.cost * 0.0)


def _by_load(scored: Scored) -> Scored:
    """Seconds of waiting on a worker that prefills, requests on one that decodes."""
    load = scored.table.column("in_flight") if scored.role == "decode" else scored.terms["wait"]
    return replace(scored, cost=load.copy())


def _by_first_token(scored: Scored) -> Scored:
    """Seconds to the first token on a worker that prefills, requests on one that decodes."""
    if scored.role == "decode":
        return _by_load(scored)
    return replace(scored, cost=scored.terms["wait"] + scored.terms["transfer"] + scored.terms["compute"])


POLICIES: Mapping[str, Place] = {
    "ours": Named(OURS),
    "random": Named(Policy("random", _by_nothing), "always", may_fetch=False),
    "least_load": Named(Policy("least_load", _by_load), "always", may_fetch=False),
    "cache_aware_local": Named(Policy("cache_aware_local", _by_first_token), "always", may_fetch=False),
    "unsplit_chunked": Named(Policy("unsplit_chunked", OURS.weigh), "never"),
}
