"""What everybody is given to do. Pure, and only the standard library.

Prompts are ids drawn at random, so nobody's cache of prefixes helps, and each repetition has prompts of its own.
Answers are greedy and have their full length: no end token stops them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

Prompts = Sequence[Sequence[int]]

LOWEST_ID = 100
"""Ids below are control tokens in many vocabularies."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that arrive all at once."""

    name: str
    requests: int
    prompt_tokens: int
    answer_tokens: int
    text: str
    """For people."""

    def prompts(self, vocab: int, repetition: int) -> list[list[int]]:
        """`requests` prompts of `prompt_tokens` ids; the same for whoever asks with the same repetition."""
        draw = Random(f"{self.name} {repetition}")
        return [[draw.randrange(LOWEST_ID, vocab) for _ in range(self.prompt_tokens)] for _ in range(self.requests)]


W1 = Workload("W1", 16, 128, 64, "16 requests at once, 128 tokens in, 64 out")
W2 = Workload("W2", 1, 128, 128, "one stream, 128 tokens in, 128 out")
W3 = Workload("W3", 1, 1024, 1, "a prompt of 1 024 tokens")

WORKLOADS = {workload.name: workload for workload in (W1, W2, W3)}


def picked(names: str) -> tuple[Workload, ...]:
    """`W1,W3` as workloads. Raises ValueError naming the known ones."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted or any(name not in WORKLOADS for name in wanted):
        raise ValueError(f"workloads are {', '.join(WORKLOADS)}")
    return tuple(WORKLOADS[name] for name in dict.fromkeys(wanted))
