"""The sampler against a slow and obvious one."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.core.draw import uniform
from services.core.plan import Draw
from services.core.request import Sampling
from services.engine.sampler import LIKELIEST, sample

VOCABULARY = 3 * LIKELIEST
EDGE = 1e-12


def obvious(logits: Sequence[float], draw: Draw, nudge: float = 0.0) -> int:
    """One row in plain Python; `nudge` moves every comparison of sums by a rounding error."""
    sampling = draw.sampling
    order = sorted(
        (token for token in range(len(logits)) if token not in draw.banned and logits[token] > -math.inf),
        key=lambda token: (-logits[token], token),
    )
    if sampling.temperature == 0:
        return order[0]
    weight = {token: math.exp((logits[token] - logits[order[0]]) / sampling.temperature) for token in order}
    kept = order[: sampling.top_k or len(order)]
    kept = _top_p(kept, weight, sampling.top_p + nudge) if sampling.top_p < 1 else kept
    kept = [token for token in kept if token == order[0] or weight[token] >= sampling.min_p + nudge]
    target = (uniform(sampling.seed, draw.position) + nudge) * math.fsum(weight[token] for token in kept)
    below = 0.0
    for token in kept:
        below += weight[token]
        if below > target:
            return token
    return kept[-1]


def _top_p(order: list[int], weight: dict[int, float], top_p: float) -> list[int]:
    total = math.fsum(weight[token] for token in order)
    kept: list[int] = []
    for token in order:
        if kept and math.fsum(weight[each] for each in kept) >= top_p * total:
            break
        kept.append(token)
    return kept


def obvious_answers(logits: Sequence[float], draw: Draw) -> set[int]:
    """More than one where the outcome hangs on the last digit of a sum."""
    return {obvious(logits, draw, nudge) for nudge in (-EDGE, 0.0, EDGE)}


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from((0.0, 0.3, 0.7, 1.0, 1.5, 40.0)),
    top_k=st.sampled_from((0, 0, 1, 2, 5, 40, LIKELIEST, LIKELIEST + 1, 10_000)),
    top_p=st.sampled_from((1.0, 1.0, 0.0, 0.1, 0.5, 0.9, 0.999)),
    min_p=st.sampled_from((0.0, 0.0, 0.001, 0.1, 0.5, 1.0)),
    seed=st.integers(0, 2**64 - 1),
)
draws = st.builds(
    Draw,
    sampling=samplings,
    position=st.integers(0, 10_000),
    banned=st.frozensets(st.integers(0, 8), max_size=3),
)


@st.composite
def rows(draw: st.DrawFn) -> list[float]:
    """Logits of a large vocabulary: steep, flat, with many ties, with -inf. Cheap to draw: a seed and a shape."""
    seed, spread = draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from((0.0, 0.1, 1.0, 4.0, 30.0)))
    step, holes = draw(st.sampled_from((0.0, 0.25, 1.0))), draw(st.sampled_from((0.0, 0.3, 0.98)))
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(VOCABULARY, generator=generator) * spread
    logits = (logits / step).round() * step if step else logits
    logits[torch.rand(VOCABULARY, generator=generator) < holes] = -torch.inf
    logits[9] = 0.5  # one that is neither banned nor -inf
    return [float(logit) for logit in logits]


@given(st.lists(st.tuples(rows(), draws), min_size=1, max_size=4))
def test_the_token_is_the_one_of_the_obvious_sampler(batch: list[tuple[list[float], Draw]]) -> None:
    tokens = sample(torch.tensor([logits for logits, _ in batch]), [draw for _, draw in batch])
    for (logits, draw), token in zip(batch, tokens, strict=True):
        assert token in obvious_answers(logits, draw)


@given(st.lists(st.tuples(rows(), draws), min_size=2, max_size=5))
def test_a_row_does_not_depend_on_its_neighbours(batch: list[tuple[list[float], Draw]]) -> None:
    together = sample(torch.tensor([logits for logits, _ in batch]), [draw for _, draw in batch])
    alone = [sample(torch.tensor([logits]), [draw])[0] for logits, draw in batch]
    assert together == alone


@given(rows(), st.integers(0, 2**64 - 1))
def test_the_smallest_temperature_is_greedy(logits: list[float], seed: int) -> None:
    cold = Draw(Sampling(temperature=1e-30, seed=seed), position=3)
    assert sample(torch.tensor([logits]), [cold]) == [obvious(logits, Draw(Sampling(temperature=0.0), position=3))]


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1e-4, 1.0])
def test_equal_logits_go_to_the_lower_id(temperature: float) -> None:
    logits = torch.full((1, 600), -torch.inf)
    logits[0, [31, 30, 599]] = 2.0
    draw = Draw(Sampling(temperature=temperature, top_k=1, seed=5), position=1)
    assert sample(logits, [draw]) == [30]


def test_a_row_that_is_not_a_number_fails_alone() -> None:
    logits = torch.zeros(5, 600)
    logits[0, 7] = logits[3, 7] = torch.nan
    logits[1, 9] = torch.inf
    logits[2, 4] = 30.0
    logits[4] = -torch.inf
    hot = Draw(Sampling(seed=1), position=1)
    hidden = Draw(Sampling(temperature=0.0), position=1, banned=frozenset({7}))
    assert sample(logits, [hot, hot, hot, hidden, hot]) == [None, None, 4, None, None]


def test_banned_ids_are_never_drawn_and_all_banned_is_a_failure() -> None:
    logits = torch.zeros(1, 4)
    some = frozenset({0, 2, 700})
    drawn = {sample(logits, [Draw(Sampling(seed=seed), 1, some)])[0] for seed in range(64)}
    assert drawn == {1, 3}
    assert sample(logits, [Draw(Sampling(temperature=0.0), 1, frozenset(range(4)))]) == [None]
    assert logits.eq(0).all()


def test_draws_follow_the_probabilities() -> None:
    logits = torch.tensor([[1.0, 0.0, 3.0, 2.0]])
    draw_count = 4000
    seeds = [Draw(Sampling(temperature=0.8, seed=seed), position=9) for seed in range(draw_count)]
    tokens = sample(logits.expand(draw_count, -1), seeds)
    expected = torch.softmax(logits[0] / 0.8, dim=0)
    for token, probability in enumerate(expected.tolist()):
        deviation = (probability * (1 - probability) / draw_count) ** 0.5
        assert abs(tokens.count(token) / draw_count - probability) < 4 * deviation


def test_the_draw_depends_on_seed_and_position_only() -> None:
    logits = torch.zeros(1, 5000)
    first = sample(logits, [Draw(Sampling(seed=8), position=20)])
    assert sample(logits, [Draw(Sampling(seed=8), position=20)]) == first
    assert sample(logits, [Draw(Sampling(seed=8), position=21)]) != first
    assert sample(logits, [Draw(Sampling(seed=9), position=20)]) != first
