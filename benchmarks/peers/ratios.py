"""Ours against each peer of comparable quality. Pure."""

from collections.abc import Mapping

from peers.trace import Measures

QUALITY_LIMIT = 0.02
"""Mean KL to float32, in nats per token, up to which an engine still computes the same model."""

MeasuresOf = Mapping[str, Mapping[str, Measures]]
"""Contender to workload to the medians of its measures; a contender may lack workloads."""

COMPARED = {
    "W1_tokens_per_second": ("W1", "tokens_per_second"),
    "W1_ttft": ("W1", "ttft"),
    "W2_tokens_per_second": ("W2", "tokens_per_second"),
    "W3_tokens_per_second": ("W3", "tokens_per_second"),
}
"""Name of a ratio to its workload and measure."""
LOWER_IS_BETTER = frozenset({"ttft"})


def ratios(ours: str, found: MeasuresOf, kl: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Ours ÷ peer by ratio and peer; a peer whose quality is not known or not comparable is in none."""
    table: dict[str, dict[str, float]] = {}
    for name, (workload, measure) in COMPARED.items():
        own = found[ours].get(workload)
        if own is not None:
            table[name] = {
                peer: own[measure] / theirs[workload][measure]
                for peer, theirs in found.items()
                if peer != ours and measure in theirs.get(workload, ()) and is_comparable(kl.get(peer))
            }
    return table


def is_comparable(kl: float | None) -> bool:
    """Also false for NaN."""
    return kl is not None and kl <= QUALITY_LIMIT


def best_peer(name: str, by_peer: Mapping[str, float]) -> str | None:
    """The peer against which ours looks worst; None if there is none."""
    if not by_peer:
        return None
    choose = max if COMPARED[name][1] in LOWER_IS_BETTER else min
    return choose(by_peer, key=lambda peer: by_peer[peer])
