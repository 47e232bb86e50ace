"""A decision as its record: the cheapest candidates of each role, term by term, and what is expected of the choice."""

from collections.abc import Iterator, Sequence

import numpy as np

from services.scheduler.asking import Asking
from services.scheduler.candidates import Scored
from services.scheduler.decision import SHOWN, Candidate, Decision

Choice = tuple[Scored, int]
"""A worker in a role: its table and its row."""


def recorded(asking: Asking, computes: Choice, decode: Choice, scored: Sequence[Scored]) -> Decision:
    """`computes` and `decode` are the same where the decode worker prefills."""
    (scores, row), (answers, decode_row) = computes, decode
    is_split = scores is not answers
    seconds = float(scores.compute[row])
    fit = sum(int(np.count_nonzero(each.is_fit)) for each in scored)
    candidates = tuple(_shown(asking, scored))
    block_size = scores.table.block_size
    return Decision(
        prefill=scores.table.addresses[row] if is_split else "",
        decode=answers.table.addresses[decode_row],
        candidates=candidates,
        chosen=tuple(each.candidate(at, asking.view) for each, at in ((computes, decode) if is_split else (computes,))),
        others=fit - len(candidates),
        ttft=float(scores.terms["wait"][row] + scores.terms["transfer"][row]) + seconds,
        prefill_seconds=seconds,
        itl=float(answers.itl[decode_row]),
        uncached_tokens=len(asking.request.tokens) - int(scores.cached[row]) * block_size,
    )


def _shown(asking: Asking, scored: Sequence[Scored]) -> Iterator[Candidate]:
    """The cheapest of each role that are fit, in order of cost."""
    for role in ("prefill", "decode", "local"):
        found = [choice for each in scored if each.role == role for choice in _cheapest(each)]
        found.sort(key=lambda choice: (float(choice[0].cost[choice[1]]), choice[0].table.addresses[choice[1]]))
        for scores, row in found[:SHOWN]:
            yield scores.candidate(row, asking.view)


def _cheapest(scores: Scored) -> list[Choice]:
    costs = np.where(scores.is_fit, scores.cost, np.inf)
    rows = np.argpartition(costs, SHOWN)[:SHOWN] if costs.size > SHOWN else np.arange(costs.size)
    return [(scores, int(row)) for row in rows if np.isfinite(costs[row])]
