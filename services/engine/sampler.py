"""From logits to tokens.

Owns the order of operations: banned ids, temperature, top-k, top-p (of what top-k left), min-p, draw. Must not know
requests. A row's token is a pure function of its own logits and its `Draw`; neighbours cannot change it.

Tokens are ordered by (logit descending, id ascending) and every filter keeps a prefix of that order; the draw is the
first token whose cumulative probability, in float64, exceeds the row's uniform number, which depends on
(seed, position) alone. So a request that is resumed elsewhere goes on with the same tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch.nn.functional import pad

from services.core.draw import uniform
from services.core.plan import Draw

GREEDY_BELOW = 1e-5
"""Lower temperatures are greedy: all they would add is a choice among ties."""

LIKELIEST = 256
"""Tokens sorted at first. Sorting a vocabulary costs more than computing it, and these nearly always decide the draw;
a row that they do not decide is sorted whole."""


def sample(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int | None]:
    """One token per row of `logits` `[rows, vocab]`; None for a row with NaN or +inf, or without an allowed id.

    Equal logits go to the lower id. `logits` is not changed.
    """
    allowed = _without_banned(logits, draws)
    best = allowed.max(dim=-1)  # the first of equals
    # A maximum is NaN if anything is. A ban must not hide that, so it is looked for before the bans.
    is_sound = (logits.amax(dim=-1) < torch.inf) & (best.values > -torch.inf)
    tokens: list[int | None] = [
        token if sound else None for token, sound in zip(best.indices.tolist(), is_sound.tolist(), strict=True)
    ]
    drawing = [
        row for row, draw in enumerate(draws) if tokens[row] is not None and draw.sampling.temperature >= GREEDY_BELOW
    ]
    if drawing:
        drawn = _draw(allowed[drawing], [draws[row] for row in drawing])
        for row, token in zip(drawing, drawn, strict=True):
            tokens[row] = token
    return tokens


def _without_banned(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    vocab = logits.shape[1]
    banned = [(row, token) for row, draw in enumerate(draws) for token in draw.banned if 0 <= token < vocab]
    if not banned:
        return logits
    rows, tokens = torch.tensor(banned, device=logits.device).unbind(1)
    return logits.index_put((rows, tokens), logits.new_tensor(-torch.inf))


def _draw(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """Draw from every row, trying its likeliest tokens first. Rows hold a finite logit and neither NaN nor +inf."""
    vocab = logits.shape[1]
    filters = _Filters.of(draws, logits)
    tokens, is_decided = _pick(logits, filters, width=min(LIKELIEST, vocab))
    undecided = [row for row, decided in enumerate(is_decided.tolist()) if not decided]
    if undecided:
        tokens[undecided] = _pick(logits[undecided], filters.of_rows(undecided), width=vocab)[0]
    return [int(token) for token in tokens.tolist()]


@dataclass(frozen=True, slots=True)
class _Filters:
    """Parameters of the rows, each a float64 column `[rows, 1]` that broadcasts over tokens."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    """The whole vocabulary where k is not asked for."""
    top_p: torch.Tensor
    min_p: torch.Tensor
    uniform: torch.Tensor

    @classmethod
    def of(cls, draws: Sequence[Draw], logits: torch.Tensor) -> Self:
        vocab = logits.shape[1]

        def column(values: Sequence[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float64, device=logits.device)[:, None]

        return cls(
            temperature=column([draw.sampling.temperature for draw in draws]),
            top_k=column([min(draw.sampling.top_k or vocab, vocab) for draw in draws]),
            top_p=column([draw.sampling.top_p for draw in draws]),
            min_p=column([draw.sampling.min_p for draw in draws]),
            uniform=column([uniform(draw.sampling.seed, draw.position) for draw in draws]),
        )

    def of_rows(self, rows: list[int]) -> Self:
        return type(self)(
            self.temperature[rows], self.top_k[rows], self.top_p[rows], self.min_p[rows], self.uniform[rows]
        )


def _pick(logits: torch.Tensor, filters: _Filters, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw among the `width` likeliest tokens; returns tokens `[rows]` and which of them are decided.

    With less than the whole vocabulary, a row is decided if the tokens known to be its likeliest show where the
    filters cut, or if nothing is filtered and the draw falls among them. A row is decided by itself, so which width
    serves it does not depend on its neighbours.
    """
    vocab = logits.shape[1]
    ids, is_known = _likeliest(logits, width)
    # Shifting before dividing keeps the smallest temperatures from overflowing.
    weights = ((logits.double() - logits.amax(dim=-1, keepdim=True)) / filters.temperature).exp()
    # Row by row: one reduction over all rows may be split among threads according to how many rows there are.
    total = torch.stack([row.sum() for row in weights])[:, None]
    weight = weights.gather(1, ids)
    cumulative = weight.cumsum(dim=-1)

    has_top_k = filters.top_k < vocab
    mass = torch.where(has_top_k, _at(cumulative, filters.top_k.long()), total)
    count = (is_known & _passes(weight, cumulative, mass, filters)).sum(dim=-1, keepdim=True)
    known = is_known.sum(dim=-1, keepdim=True)
    mass = torch.where(count < known, _at(cumulative, count), mass)
    index = (cumulative <= filters.uniform * mass).sum(dim=-1, keepdim=True)

    is_cut = torch.where(has_top_k, filters.top_k <= known, count < known)
    is_open = ~has_top_k & (filters.top_p >= 1) & (filters.min_p <= 0)
    is_decided = is_cut | (is_open & (index < known)) | (width == vocab)
    # Rounding may put the draw past the end; no kept token is skipped for one that is not.
    return ids.gather(1, torch.minimum(index, count - 1).clamp(min=0))[:, 0], is_decided[:, 0]


def _passes(weight: torch.Tensor, cumulative: torch.Tensor, mass: torch.Tensor, filters: _Filters) -> torch.Tensor:
    """Which tokens `[rows, width]`, likeliest first, the filters keep; the first always."""
    rank = torch.arange(weight.shape[1], device=weight.device)
    before = pad(cumulative[:, :-1], (1, 0))
    in_top_p = (filters.top_p >= 1) | (before < filters.top_p * mass)
    return (rank == 0) | (in_top_p & (rank < filters.top_k) & (weight >= filters.min_p) & (weight > 0))


def _at(cumulative: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """The weight of the first `count` tokens, `[rows, 1]`; of all there are, if there are fewer."""
    return cumulative.gather(1, (count - 1).clamp(0, cumulative.shape[1] - 1))


def _likeliest(logits: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids `[rows, width]` in order, and which of them are certain to be the row's likeliest.

    What equals the last one is not certain: more of its equals, with lower ids, may be among those left out.
    """
    ids = logits.topk(width, dim=-1).indices.sort(dim=-1).values
    values, order = logits.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    is_known = (values > values[:, -1:]) | (width == logits.shape[1])
    return ids.gather(1, order), is_known
