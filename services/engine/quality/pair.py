"""An engine that serves and its reference, side by side: the search for damage, and the measuring of prompts.

A pass over a prompt keeps a few numbers a row, never its logits.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from services.engine.quality import matrices, stages
from services.engine.quality.prompts import Prompt
from services.engine.quality.report import Inspection, PromptRows
from services.engine.quality.rows import compared, joined
from services.engine.quality.subject import ROUNDING, Subject

INSPECTED_PROMPTS = 3
"""That are looked at stage by stage, evenly from all."""

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Both engines of one model."""

    reference: Subject
    served: Subject
    layers: int
    kv_dtype: str
    """Of the one that serves."""

    def inspected(self, prompts: Sequence[Prompt], progress: Progress) -> Inspection:
        """Every matrix, then every stage on a few prompts."""
        errors = []
        for number, matrix in enumerate(self.served.matrices()):
            progress("comparing matrices", number, 4 * self.layers + 1)
            errors.append(matrices.measured(matrix))
        progress("comparing layers", 0, 1)
        rounds = any(each.form in ROUNDING for each in errors)
        some = [prompts[at * len(prompts) // INSPECTED_PROMPTS].tokens for at in range(INSPECTED_PROMPTS)]
        found = stages.measured(self.reference, self.served, self.layers, some)
        damage = [
            *matrices.damaged(errors),
            *stages.damaged(found, stages.Tolerance.of(rounds, self.kv_dtype)),
        ]
        return Inspection(errors, found, damage)

    def measured(self, prompts: Sequence[Prompt], progress: Progress) -> Iterator[PromptRows]:
        """The distributions after every token of every prompt."""
        for number, prompt in enumerate(prompts):
            progress("comparing prompts", number, len(prompts))
            parts, at = [], 1
            of_both = zip(
                self.reference.every_logits(prompt.tokens), self.served.every_logits(prompt.tokens), strict=True
            )
            for expected, found in of_both:
                parts.append(compared(expected, found, prompt.tokens[at : at + len(found)]))
                at += len(found)
            yield PromptRows(prompt, joined(parts))
