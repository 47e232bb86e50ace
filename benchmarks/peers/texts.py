"""Prompts of real text: what a server streams back is then text too, a piece for every token."""

from random import Random
from typing import Protocol

SENTENCES = (
    "The lighthouse keeper wrote every evening in a thick grey book.",
    "He noted the wind, the height of the waves, and the names of the ships that passed.",
    "On some evenings he wrote only the date, for the fog hid the whole world.",
    "In the morning the fishermen came back with their nets full, or with nothing at all.",
    "Their children waited on the stones and counted the sails.",
    "Nobody in the village could say how old the tower was.",
    "A doctor came once a month on the mail boat and stayed until the tide turned.",
    "The schoolteacher kept a garden behind the church, where the wall held off the salt.",
    "When the storm of that winter broke the pier, it was built again with stones from the hill.",
    "The ferry was painted green, and its bell could be heard from both shores.",
)


class Encodes(Protocol):
    def encode(self, text: str, *, allow_special: bool) -> list[int]: ...


def text_prompts(tokenizer: Encodes, requests: int, tokens: int, draw: Random) -> list[list[int]]:
    """`requests` prompts of exactly `tokens` ids; each begins with a number of its own, so none shares a prefix."""
    return [_prompt(tokenizer, tokens, draw) for _ in range(requests)]


def _prompt(tokenizer: Encodes, tokens: int, draw: Random) -> list[int]:
    text = f"{draw.randrange(10**9)}."
    while len(ids := tokenizer.encode(text, allow_special=False)) < tokens:
        text += "".join(f" {draw.choice(SENTENCES)}" for _ in range(8))
    return ids[:tokens]
