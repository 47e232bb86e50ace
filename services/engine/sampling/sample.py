"""The sampler: one token for each row of logits, whichever engine computed them.

A row's token, and what is reported of it, is a pure function of its own logits and its `Draw`; neighbours cannot
change it. Rows are gone through in compiled code; Python touches those rows one by one that ask for bans, bias,
penalties or log probabilities.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from services.core.draw import uniform
from services.core.plan import Draw, Drawn, History
from services.core.request import Sampling
from services.engine.sampling.best import best_tokens
from services.engine.sampling.draw import Filters, draw_tokens
from services.engine.sampling.edits import edit
from services.engine.sampling.logprobs import logprobs_of

GREEDY_BELOW = 1e-5
"""Lower temperatures are greedy: all they would add is a choice among ties."""

Logits = NDArray[np.float32]
Tokens = NDArray[np.int64]


def sample(logits: Logits, draws: Sequence[Draw]) -> list[Drawn | None]:
    """What each row of `logits` `[rows, vocab]`, in host memory, gives; `logits` is not changed.

    None for a row with NaN or +inf, or without an id that may be drawn. Equal logits go to the lower id.
    """
    if not draws:
        return []
    # One form for all callers, since another one would be compiled anew.
    logits = np.require(logits, np.float32, ("C", "A", "W"))
    best = _best(logits)
    tokens = best.copy()
    edited = [row for row, draw in enumerate(draws) if draw.is_edited and best[row] >= 0]
    _draw(logits, tokens, [(row, draw) for row, draw in enumerate(draws) if not draw.is_edited])
    if edited:
        tokens[edited] = _edited_tokens(logits[edited], [draws[row] for row in edited])
    drawn = [Drawn(token) if token >= 0 else None for token in tokens.tolist()]
    _report(logits, best, draws, drawn)
    return drawn


def compile_all() -> None:
    """Has everything compiled, or read from disk, before the first request: seconds, or a fraction of one."""
    plain = Sampling(top_k=3, top_p=0.5, min_p=0.1, logprobs=1)
    penal = Sampling(repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.5)
    history = History((1,), (2,))
    sample(np.zeros((2, 1024), np.float32), [Draw(plain, 1), Draw(penal, 1, history=history)])


def _best(logits: Logits) -> Tokens:
    tokens = np.empty(len(logits), np.int64)
    best_tokens(logits, tokens)
    return tokens


def _edited_tokens(logits: Logits, draws: Sequence[Draw]) -> Tokens:
    """The same for rows that are changed first; `logits` is a copy of theirs."""
    for row, draw in zip(logits, draws, strict=True):
        edit(row, draw)
    tokens = _best(logits)
    _draw(logits, tokens, list(enumerate(draws)))
    return tokens


def _draw(logits: Logits, tokens: Tokens, draws: Sequence[tuple[int, Draw]]) -> None:
    """Replaces the best token of a sound row that is not greedy by one that is drawn."""
    drawing = [(row, draw) for row, draw in draws if draw.sampling.temperature >= GREEDY_BELOW and tokens[row] >= 0]
    if drawing:
        rows = np.array([row for row, _ in drawing], np.int64)
        draw_tokens(logits, rows, _filters([draw for _, draw in drawing], logits.shape[1]), tokens)


def _filters(draws: Sequence[Draw], vocab: int) -> Filters:
    samplings = [draw.sampling for draw in draws]
    return Filters(
        temperature=np.array([sampling.temperature for sampling in samplings]),
        top_k=np.array([min(sampling.top_k or vocab + 1, vocab + 1) for sampling in samplings], np.int64),
        top_p=np.array([sampling.top_p for sampling in samplings]),
        min_p=np.array([sampling.min_p for sampling in samplings]),
        uniform=np.array([uniform(draw.sampling.seed, draw.position) for draw in draws]),
    )


def _report(logits: Logits, best: Tokens, draws: Sequence[Draw], drawn: list[Drawn | None]) -> None:
    """Puts log probabilities beside the tokens of the rows that ask for them."""
    asked = [
        (row, one.token, draw.sampling.logprobs)
        for row, (draw, one) in enumerate(zip(draws, drawn, strict=True))
        if one is not None and draw.sampling.logprobs is not None
    ]
    if not asked:
        return
    rows, tokens, tops = zip(*asked, strict=True)
    for row, token, logprobs in zip(rows, tokens, logprobs_of(logits, best, rows, tokens, tops), strict=True):
        drawn[row] = Drawn(token, logprobs)
