"""The sampler against a slow and obvious one: random rows with ties, holes and shapes, all settings at once."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from services.core.plan import Draw, Drawn, History
from services.core.request import Sampling
from services.engine.sampling.sample import sample
from tests.support.obvious_sampler import obvious_logprobs, obvious_tokens

Row = NDArray[np.float32]

SOUND = 9
"""An id that is never banned and always has a finite logit, in vocabularies that have it."""

ids = st.integers(-1, 12) | st.sampled_from((700, 5000, 2**31 - 1))
samplings = st.builds(
    Sampling,
    temperature=st.sampled_from((0.0, 1e-6, 1e-4, 0.3, 0.7, 1.0, 1.5, 100.0)),
    top_k=st.sampled_from((0, 0, 1, 2, 5, 19, 40, 400, 10_000)),
    top_p=st.sampled_from((1.0, 1.0, 0.0, 0.1, 0.5, 0.9, 0.999)),
    min_p=st.sampled_from((0.0, 0.0, 0.001, 0.1, 0.5, 1.0)),
    seed=st.integers(0, 2**64 - 1),
    repetition_penalty=st.sampled_from((1.0, 0.5, 1.1, 2.0)),
    presence_penalty=st.sampled_from((0.0, -2.0, 0.5)),
    frequency_penalty=st.sampled_from((0.0, -0.7, 1.3)),
    logit_bias=st.dictionaries(ids.filter(lambda token: token >= 0), st.floats(-100, 100), max_size=3).map(
        lambda bias: tuple(sorted(bias.items()))
    ),
    logprobs=st.sampled_from((None, None, 0, 1, 5, 20)),
)
histories = st.builds(History, st.lists(ids, max_size=6), st.lists(ids, max_size=6))


@st.composite
def draws(draw: st.DrawFn) -> Draw:
    sampling = draw(samplings)
    banned = draw(st.frozensets(ids.filter(lambda token: token != SOUND), max_size=3))
    history = draw(histories) if sampling.has_penalties else None
    return Draw(sampling, draw(st.integers(0, 10_000)), banned, history)


def row_of(vocab: int, seed: int, spread: float, step: float, holes: float) -> Row:
    """Logits of a shape: steep or flat, in steps so that there are ties, with -inf."""
    random = np.random.default_rng(seed)
    row = random.standard_normal(vocab) * spread
    row = np.round(row / step) * step if step else row
    row[random.random(vocab) < holes] = -np.inf
    row[min(SOUND, vocab - 1)] = 0.5
    return row.astype(np.float32)


@st.composite
def batches(draw: st.DrawFn) -> list[tuple[Row, Draw]]:
    """Rows of one vocabulary; cheap to draw: a seed and a shape each."""
    vocab = draw(st.sampled_from((11, 64, 700, 1603)))
    rows = st.builds(
        row_of,
        vocab=st.just(vocab),
        seed=st.integers(0, 2**32 - 1),
        spread=st.sampled_from((0.0, 0.1, 1.0, 4.0, 30.0)),
        step=st.sampled_from((0.0, 0.25, 1.0)),
        holes=st.sampled_from((0.0, 0.3, 0.98)),
    )
    return draw(st.lists(st.tuples(rows, draws()), min_size=1, max_size=4))


def sampled(batch: list[tuple[Row, Draw]]) -> list[Drawn | None]:
    return sample(np.stack([row for row, _ in batch]), [draw for _, draw in batch])


def token_of(row: Row, draw: Draw) -> int | None:
    [drawn] = sampled([(row, draw)])
    return drawn and drawn.token


@given(batches())
def test_the_token_is_the_one_of_the_obvious_sampler(batch: list[tuple[Row, Draw]]) -> None:
    for (row, draw), drawn in zip(batch, sampled(batch), strict=True):
        assert (drawn and drawn.token) in obvious_tokens(row, draw)


@given(batches(), st.sampled_from((np.nan, -np.nan, np.inf)))
def test_a_row_does_not_depend_on_its_neighbours_even_if_one_is_not_a_number(
    batch: list[tuple[Row, Draw]], wrong: float
) -> None:
    broken = batch[0][0].copy()
    broken[-1] = wrong
    together = sampled([*batch, (broken, batch[0][1])])
    assert together == [sampled([one])[0] for one in batch] + [None]


@given(batches())
def test_log_probabilities_are_those_of_the_logits_as_they_came(batch: list[tuple[Row, Draw]]) -> None:
    for (row, draw), drawn in zip(batch, sampled(batch), strict=True):
        if drawn is None:
            continue
        most = draw.sampling.logprobs
        if most is None:
            assert drawn.logprobs is None
            continue
        expected = obvious_logprobs(row)
        assert drawn.logprobs is not None
        assert drawn.logprobs.logprob == pytest.approx(dict(expected)[drawn.token], abs=1e-12)
        assert [token for token, _ in drawn.logprobs.top] == [token for token, _ in expected[:most]]
        assert [value for _, value in drawn.logprobs.top] == pytest.approx([value for _, value in expected[:most]])


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1e-4, 1.0, 100.0])
def test_equal_logits_go_to_the_lower_id(temperature: float) -> None:
    row = np.full(1600, -np.inf, np.float32)
    row[[1531, 30, 31, 599]] = 2.0
    assert token_of(row, Draw(Sampling(temperature=temperature, top_k=1, seed=5), 1)) == 30


@pytest.mark.parametrize("first", [0.0, -0.0])
def test_both_zeros_are_equal(first: float) -> None:
    row = np.full(1600, -1.0, np.float32)
    row[700], row[40] = -first, first
    assert token_of(row, Draw(Sampling(temperature=0.0), 1)) == 40


@pytest.mark.parametrize("where", [0, 511, 512, 1599])
def test_every_place_of_a_row_is_looked_at(where: int) -> None:
    row = np.linspace(-9, -1, 1600, dtype=np.float32)
    greedy = Draw(Sampling(temperature=0.0), 1)
    for wrong in (np.nan, -np.nan, np.inf):
        broken = row.copy()
        broken[where] = wrong
        assert token_of(broken, greedy) is None
    row[where] = -0.5
    assert token_of(row, greedy) == where


def test_a_row_that_is_not_a_number_fails_alone() -> None:
    logits = np.zeros((6, 600), np.float32)
    logits[0, 7] = logits[3, 7] = np.nan
    logits[1, 9] = np.inf
    logits[2, 4] = 60.0
    logits[4] = -np.inf
    hot = Draw(Sampling(seed=1), position=1)
    hidden = Draw(Sampling(temperature=0.0), position=1, banned=frozenset({7}))
    overflowing = Draw(Sampling(temperature=0.0, logit_bias=((5, 1e39),)), position=1)
    drawn = sample(logits, [hot, hot, hot, hidden, hot, overflowing])
    assert drawn == [None, None, Drawn(4), None, None, None]


def test_banned_ids_are_never_drawn_and_all_banned_is_a_failure() -> None:
    logits = np.zeros((1, 4), np.float32)
    some = frozenset({0, 2, 700, -1})
    drawn = {token_of(logits[0], Draw(Sampling(seed=seed, logit_bias=((2, 50.0),)), 1, some)) for seed in range(64)}
    assert drawn == {1, 3}
    assert token_of(logits[0], Draw(Sampling(temperature=0.0), 1, frozenset(range(4)))) is None
    assert not logits.any(), "the logits are as they were"


def test_penalties_count_what_they_say_they_count() -> None:
    row = np.array([3.0, 3.0, 3.0, -1.0, 0.0], np.float32)
    history = History(prompt=(0, 0, 3), answer=(1, 1, 0))

    def order(sampling: Sampling) -> list[int]:
        """Ids by their changed logits, read off by banning the best again and again."""
        banned: list[int] = []
        greedy = replace(sampling, temperature=0.0)
        while (token := token_of(row, Draw(greedy, 1, frozenset(banned), history))) is not None:
            banned.append(token)
        return banned

    assert order(Sampling(repetition_penalty=2.0)) == [2, 0, 1, 4, 3]
    assert order(Sampling(presence_penalty=1.0)) == [2, 0, 1, 4, 3]
    assert order(Sampling(frequency_penalty=1.0)) == [2, 0, 1, 4, 3]
    assert order(Sampling(frequency_penalty=-1.0)) == [1, 0, 2, 4, 3]
    assert order(Sampling(presence_penalty=-1.0)) == [0, 1, 2, 4, 3]
    assert order(Sampling(repetition_penalty=0.2)) == [0, 1, 2, 4, 3]


def test_draws_follow_the_probabilities() -> None:
    draw_count = 4000
    logits = np.tile(np.array([1.0, 0.0, 3.0, 2.0], np.float32), (draw_count, 1))
    seeds = [Draw(Sampling(temperature=0.8, seed=seed), position=9) for seed in range(draw_count)]
    tokens = [drawn.token for drawn in sample(logits, seeds) if drawn is not None]
    weights = np.exp(logits[0].astype(np.float64) / 0.8)
    for token, probability in enumerate(weights / weights.sum()):
        deviation = (probability * (1 - probability) / draw_count) ** 0.5
        assert abs(tokens.count(token) / draw_count - probability) < 4 * deviation


def test_the_draw_depends_on_seed_and_position_only() -> None:
    row = np.zeros(5000, np.float32)
    first = token_of(row, Draw(Sampling(seed=8), position=20))
    assert token_of(row, Draw(Sampling(seed=8), position=20)) == first
    assert token_of(row, Draw(Sampling(seed=8), position=21)) != first
    assert token_of(row, Draw(Sampling(seed=9), position=20)) != first


@pytest.mark.parametrize("top_k", [0, 3])
def test_a_large_flat_vocabulary_is_drawn_from_end_to_end(top_k: int) -> None:
    row = np.zeros(49_152, np.float32)
    tokens = [token_of(row, Draw(Sampling(seed=seed, top_k=top_k), position=1)) for seed in range(40)]
    if top_k:
        assert set(tokens) == {0, 1, 2}
    else:
        assert min(tokens) < 10_000 and max(tokens) > 40_000 and len(set(tokens)) > 35


@pytest.mark.parametrize("form", ["read-only", "float64", "transposed"])
def test_other_forms_of_the_same_logits_give_the_same(form: str) -> None:
    logits = row_of(700, 1, 4.0, 0.0, 0.0)[None].repeat(2, axis=0)
    other = {
        "read-only": np.frombuffer(logits.tobytes(), np.float32).reshape(2, -1),
        "float64": logits.astype(np.float64),
        "transposed": np.asfortranarray(logits),
    }[form]
    two = [Draw(Sampling(seed=seed), position=1) for seed in range(2)]
    assert sample(other, two) == sample(logits, two)


def test_no_rows_give_nothing() -> None:
    assert sample(np.empty((0, 10), np.float32), []) == []


FRESH = """
import sys
from array import array
import numpy as np
from services.core.plan import Draw, History
from services.core.request import Sampling
from services.engine.sampling import best, draw, edits, logprobs, weights
from services.engine.sampling.sample import compile_all, sample

compiled = [best.best_tokens, draw.draw_tokens, edits.weaken_repeated, edits.weaken_frequent]
compiled += [logprobs.top_tokens, weights.log_totals]
compile_all()
before = [len(function.signatures) for function in compiled]
assert before == [1] * 6, before
history = History(array("i", [1, 2]), array("i", []))
penal = Sampling(repetition_penalty=1.1, presence_penalty=1.0, logit_bias=((5, 1.0),), logprobs=0)
plain = Sampling(top_k=40, logprobs=20)
draws = [Draw(penal, 3, frozenset({1}), history), Draw(plain, 9), Draw(Sampling(temperature=0.0), 9)]
sample(np.random.default_rng(0).standard_normal((3, 40_000)).astype(np.float32), draws)
assert [len(function.signatures) for function in compiled] == before
assert "torch" not in sys.modules
"""


def test_everything_is_compiled_at_once_and_without_torch() -> None:
    subprocess.run([sys.executable, "-c", FRESH], timeout=120, check=True)
