"""What one worker's batch may hold, and the checks a request must pass to be taken at all. Holds no state."""

from dataclasses import dataclass

from services.core.errors import ContextTooLong, InvalidRequest, NeverFits
from services.core.request import FinishReason, Request, Role
from services.core.step_cost import StepCost


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """ValueError if a worker with these limits could never work."""

    block_size: int
    """Tokens per block."""
    num_blocks: int
    """Blocks in the KV cache."""
    max_running: int
    """Most requests that hold blocks at a time; with the cost of a row it bounds a step of decode rows alone."""
    max_waiting: int
    """Most requests in the queue; those preempted are queued on top of it. 0: as many as there are rows idle for."""
    max_context: int
    """Most tokens a request may have, prompt and answer together."""
    step_seconds: float
    """Predicted seconds a step may take; chunks are cut to it."""
    cost: StepCost
    """As measured before serving; the batch corrects it by what steps take."""
    watermark_blocks: int
    """Blocks that starting a request leaves idle for the growth of the others."""

    vocab: int = 1 << 31
    """Token ids are below this."""
    head_start: float = 60.0
    """Seconds that one level of priority is worth: a request goes before those of one level less that came so long
    before it. With an end to it, no stream of important requests starves the others."""

    even_chunks: bool = False
    """Cut a prompt that is alone into chunks of equal time, rather than into the longest that the step's time allows
    and what is left."""

    def __post_init__(self) -> None:
        for name in ("block_size", "num_blocks", "max_running", "max_context", "step_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive")
        for name in ("max_waiting", "watermark_blocks", "head_start"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")

    def blocks_for(self, tokens: int) -> int:
        """Blocks that cover `tokens` positions."""
        return -(-tokens // self.block_size)

    def check(self, request: Request) -> None:
        """Raises InvalidRequest, ContextTooLong or NeverFits if waiting cannot help the request."""
        if not request.prompt:
            raise InvalidRequest("prompt must not be empty", field="prompt")
        if not all(0 <= token < self.vocab for token in request.tokens):
            raise InvalidRequest("prompt has a token id that the model does not have", field="prompt")
        if len(request.tokens) >= self.max_context:
            raise ContextTooLong(f"prompt leaves no room in a context of {self.max_context} tokens", field="prompt")
        if self.ending(request, len(request.emitted), request.tokens[-1]) is not None:
            raise InvalidRequest("nothing is left to answer within max_tokens", field="max_tokens")
        if self.blocks_for(self._most_positions(request)) > self.num_blocks:
            raise NeverFits("prompt and max_tokens exceed this worker's KV cache", field="max_tokens")

    def ending(self, request: Request, answered: int, last: int) -> FinishReason | None:
        """Why an answer of `answered` tokens ends with its `last` one; None if it goes on.

        A stop id is the answer's last token: emitted and counted, though no text. It does not stop where it was banned.
        """
        if last in request.stopping.stop_ids and answered > request.stopping.min_tokens:
            return FinishReason.STOP
        if answered >= request.stopping.max_tokens or len(request.prompt) + answered >= self.max_context:
            return FinishReason.LENGTH
        return None

    def _most_positions(self, request: Request) -> int:
        """The token that ends an answer is drawn and never computed, but DECODE may know it before it has blocks."""
        if request.role is Role.PREFILL:
            return len(request.tokens)
        most = min(len(request.prompt) + request.stopping.max_tokens, self.max_context)
        return most if request.role is Role.DECODE else most - 1
