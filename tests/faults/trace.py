"""What a fault test asks for: a seeded list of requests that share prefixes, draw, stop and leave. Pure."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from services.core.request import Sampling

LONGEST = 1500
MOST_TOKENS = 48
EDGES = (1, 2, 15, 16, 17, 31, 32, 33, 48, 1488, 1499, LONGEST)
"""Prompt lengths that stand in every trace that has room for them: those around the ends of blocks."""
STEMS = 12
"""Texts that prompts begin with."""

GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as its client makes it."""

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = GREEDY
    min_tokens: int = 0
    stop: str = ""
    """A stop string; none if empty."""
    stop_ids: frozenset[int] = frozenset()
    """Beside the model's own, which count unless `ignores_eos`."""
    ignores_eos: bool = True
    leaves_after: int | None = None
    """The client cancels once it has so many tokens; 0: once its request is taken up."""
    lingers: float = 0.0
    """Seconds that it stays on before it cancels."""


def trace(count: int, vocab: int, seed: int = 20_26, longest: int = LONGEST) -> list[Asked]:
    """`count` requests in random order, the same for the same seed. Ids below 3 (control tokens) are not in prompts."""
    rng = random.Random(seed)
    stems = [_tokens(rng, longest, vocab) for _ in range(STEMS)]
    lengths = [edge for edge in EDGES if edge <= longest]
    lengths += [_length(rng, longest) for _ in range(count - len(lengths))]
    asked = [_asked(rng, _prompt(rng, length, stems, vocab), number) for number, length in enumerate(lengths[:count])]
    rng.shuffle(asked)
    return asked


def with_stop_id(asked: Asked, answer: Sequence[int], at: int) -> Asked:
    """The same request, ended by a token that its answer has at index `at`, or earlier."""
    return replace(asked, stop_ids=frozenset({answer[at]}))


def with_stop(asked: Asked, stop: str) -> Asked:
    """The same request, ended by a text."""
    return replace(asked, stop=stop)


def _tokens(rng: random.Random, length: int, vocab: int) -> tuple[int, ...]:
    return tuple(rng.randrange(3, vocab) for _ in range(length))


def _length(rng: random.Random, longest: int) -> int:
    """Every magnitude is as frequent as every other."""
    return max(1, round(float(longest) ** rng.random()))


def _prompt(rng: random.Random, length: int, stems: Sequence[tuple[int, ...]], vocab: int) -> tuple[int, ...]:
    """Two of three begin with a part of a stem."""
    shared = rng.randint(0, length) if rng.random() < 2 / 3 else 0
    return rng.choice(stems)[:shared] + _tokens(rng, length - shared, vocab)


def _asked(rng: random.Random, prompt: tuple[int, ...], number: int) -> Asked:
    max_tokens = rng.choice((1, 2, rng.randint(3, 16), rng.randint(17, MOST_TOKENS), rng.randint(17, MOST_TOKENS)))
    return Asked(
        prompt,
        max_tokens,
        _sampling(rng, number),
        min_tokens=rng.choice((0, 0, rng.randint(0, max_tokens))),
        ignores_eos=rng.random() < 0.5,
        leaves_after=rng.randint(0, max_tokens) if rng.random() < 0.15 else None,
    )


def _sampling(rng: random.Random, number: int) -> Sampling:
    """Greedy or drawn; some draws depend on the tokens before them, which a resumed request must not forget."""
    temperature = rng.choice((0.0, 0.8, 1.0))
    penalty = rng.choice((1.0, 1.0, 1.0, 1.3))
    return Sampling(temperature, seed=number, top_k=rng.choice((0, 0, 20)), repetition_penalty=penalty)
