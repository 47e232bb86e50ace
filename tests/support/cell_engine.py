"""An engine in small: its next token is a pure function of all tokens, read back from the blocks.

The cache is a list of token cells per block, so a block that is shared wrongly, reused too early or never filled
changes the tokens that come out.
"""

from collections.abc import Sequence

from services.core.batch_limits import BatchLimits
from services.core.ids import RequestKey
from services.core.plan import Chunk, Drawn, StepPlan, StepResult
from services.core.request import FinishReason, Request

VOCAB = 5
MAX_CONTEXT = 20


def next_token(tokens: Sequence[int], banned: frozenset[int]) -> int:
    mixed = 1
    for token in tokens:
        mixed = (mixed * 31 + token + 7) % 10007
    return next(t for k in range(VOCAB) if (t := (mixed + k) % VOCAB) not in banned)


def expected_answer(request: Request) -> tuple[tuple[int, ...], FinishReason]:
    """The whole answer of the request run alone."""
    answer = list(request.emitted)
    stopping = request.stopping
    while True:
        banned = stopping.stop_ids if len(answer) < stopping.min_tokens else frozenset[int]()
        answer.append(next_token(request.prompt + tuple(answer), banned))
        if answer[-1] in stopping.stop_ids - banned:
            return tuple(answer), FinishReason.STOP
        if len(answer) == stopping.max_tokens or len(request.prompt) + len(answer) == MAX_CONTEXT:
            return tuple(answer), FinishReason.LENGTH


class CellEngine:
    """Executes plans on a cache of token cells."""

    def __init__(self, limits: BatchLimits) -> None:
        self._size = limits.block_size
        self.cells = [[-1] * limits.block_size for _ in range(limits.num_blocks)]

    def execute(self, plan: StepPlan, broken: frozenset[RequestKey]) -> StepResult:
        for chunk in plan.chunks:
            for position, token in enumerate(chunk.tokens, chunk.start):
                self.cells[chunk.blocks[position // self._size]][position % self._size] = token
        drawn = {
            chunk.key: Drawn(next_token(self._read(chunk), chunk.draw.banned))
            for chunk in plan.chunks
            if chunk.draw is not None and chunk.key not in broken
        }
        return StepResult(drawn, {key: "the logits are not numbers" for key in broken})

    def _read(self, chunk: Chunk) -> list[int]:
        cached = [token for block in chunk.blocks for token in self.cells[block]]
        return cached[: chunk.start + len(chunk.tokens)]
