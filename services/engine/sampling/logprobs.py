"""Log probabilities of drawn tokens and of the most likely ones, as the model gave them.

A log-softmax in float64 over the row as it came: before bans, bias, penalties, temperature and filters, as OpenAI and
vLLM report it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from services.core.plan import TokenLogprobs
from services.engine.jit import outer
from services.engine.sampling.weights import Values, log_totals

NOBODY = -1


def logprobs_of(
    logits: Values, best: NDArray[np.int64], rows: Sequence[int], tokens: Sequence[int], tops: Sequence[int]
) -> list[TokenLogprobs]:
    """For the rows `rows`: the log probability of each one's token, and of its `tops` most likely.

    `logits` `[all rows, vocab]`; `best` `[all rows]` has each row's best token.
    """
    which = np.array(rows, np.int64)
    totals = np.empty(len(rows), np.float64)
    log_totals(logits, which, best[which], totals)
    top = np.full((len(rows), max(tops)), NOBODY, np.int64)
    top_tokens(logits, which, top)
    found = []
    for row, token, total, most, ids in zip(rows, tokens, totals.tolist(), tops, top.tolist(), strict=True):
        zero = float(logits[row, best[row]]) + total
        likely = tuple((each, float(logits[row, each]) - zero) for each in ids[:most] if each != NOBODY)
        found.append(TokenLogprobs(float(logits[row, token]) - zero, likely))
    return found


@outer
def top_tokens(logits: Values, rows: NDArray[np.int64], top: NDArray[np.int64]) -> None:
    """Into each line of `top` `[rows, most]` a row's highest logits' ids, the best first, the lower of equals first.

    What stays `NOBODY` has no token left that is above -inf.
    """
    most = top.shape[1]
    if most == 0:
        return
    for line in range(len(rows)):
        values = logits[rows[line]]
        kept, bar = 0, np.float32(-np.inf)
        for token in range(len(values)):
            if values[token] > bar:
                place = min(kept, most - 1)
                kept = place + 1
                while place > 0 and values[top[line, place - 1]] < values[token]:
                    top[line, place] = top[line, place - 1]
                    place -= 1
                top[line, place] = token
                if kept == most:
                    bar = values[top[line, most - 1]]
