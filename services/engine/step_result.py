"""What a step's drawing chunks came to, whichever engine computed them."""

from collections.abc import Sequence

from services.core.plan import Chunk, Drawn, StepResult

NOTHING_TO_DRAW = "the model's output is not a number, or leaves no allowed token"


def step_result(chunks: Sequence[Chunk], drawn: Sequence[Drawn | None], seconds: float) -> StepResult:
    """`chunks` are those that draw, `drawn` what the sampler gave for each; None fails that request alone."""
    result = StepResult(drawn={}, seconds=seconds)
    for chunk, one in zip(chunks, drawn, strict=True):
        if one is None:
            result.failed[chunk.key] = NOTHING_TO_DRAW
        else:
            result.drawn[chunk.key] = one
    return result
