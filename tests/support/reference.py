"""A judge that is not ours: `transformers` in float32 on the same dequantized weights.

A token of ours passes if it is the reference's own choice. It may differ only where the reference cannot decide: its
two best logits closer than 1e-3, or, for a sampled token, the draw within 1e-4 of the edge between the two tokens.
Every such case is printed and counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from services.core.draw import uniform

LOGIT_TIE = 1e-3
DRAW_TIE = 1e-4


@dataclass
class Verdict:
    """What became of the comparison."""

    tokens: int = 0
    ties: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def check(self, allowed_share: float = 0.001) -> None:
        """Fails for one wrong token, or for more ties than the share allows (at least one is)."""
        for tie in self.ties:
            print("tie:", tie)
        assert not self.wrong, self.wrong
        assert len(self.ties) <= max(1, allowed_share * self.tokens), self.ties


class Reference:
    """Loads once; answers with logits."""

    def __init__(self, gguf: Path) -> None:
        loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        self._model = loaded.eval()

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """[tokens, vocab], float32."""
        with torch.inference_mode():
            return self._model(torch.tensor([list(tokens)])).logits[0]

    def judge_greedy(self, prompt: Sequence[int], answer: Sequence[int], verdict: Verdict, name: str) -> None:
        """Each token of the answer against the reference's best after the prompt and the tokens before it."""
        rows = self.logits([*prompt, *answer[:-1]])[len(prompt) - 1 :]
        for index, token in enumerate(answer):
            verdict.tokens += 1
            best = torch.topk(rows[index], 2)
            if token == int(best.indices[0]):
                continue
            gap = float(best.values[0] - rows[index][token])
            text = f"{name}, token {index}: {token} for {int(best.indices[0])}, logits apart by {gap:.2g}"
            (verdict.ties if gap < LOGIT_TIE else verdict.wrong).append(text)

    def judge_draws(
        self, prompt: Sequence[int], answer: Sequence[int], draw: tuple[float, int], verdict: Verdict, name: str
    ) -> None:
        """As `judge_greedy` for sampling over the whole vocabulary; `draw` is (temperature, seed)."""
        temperature, seed = draw
        rows = self.logits([*prompt, *answer[:-1]])[len(prompt) - 1 :]
        for index, token in enumerate(answer):
            verdict.tokens += 1
            low, high = _interval(rows[index].double() / temperature, token)
            point = uniform(seed, len(prompt) + index)
            if low <= point < high:
                continue
            miss = min(abs(point - low), abs(point - high))
            text = f"{name}, token {index}: the draw misses its interval by {miss:.2g}"
            (verdict.ties if miss < DRAW_TIE else verdict.wrong).append(text)


def _interval(logits: torch.Tensor, token: int) -> tuple[float, float]:
    """The share of [0, 1) that belongs to `token`, ordered by (logit descending, id ascending)."""
    probabilities = torch.softmax(logits, 0)
    order = torch.argsort(logits, descending=True, stable=True)
    edges = torch.cumsum(probabilities[order], 0)
    place = int((order == token).nonzero()[0])
    return (float(edges[place - 1]) if place else 0.0), float(edges[place])
