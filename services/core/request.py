"""What is asked for: a frozen request, as every service below the gateway sees it (token ids, never text)."""

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Self

from services.core.draw import choice_seed
from services.core.ids import RequestId, RequestKey


class FinishReason(Enum):
    """Why an answer ended. A failure is never a finish reason."""

    STOP = "stop"
    """A stop id was drawn, or the gateway saw a stop string."""
    LENGTH = "length"
    """`max_tokens` were emitted."""
    HANDED_OVER = "handed_over"
    """Prefill is done and every block is sealed in the store; the answer goes on elsewhere."""


class Role(Enum):
    """The part of a request that a worker is asked to do."""

    WHOLE = "whole"
    """Prefill and decode in one place."""
    PREFILL = "prefill"
    """Compute the prompt, put its full blocks, draw the first token."""
    DECODE = "decode"
    """Fetch the prompt's full blocks, take over after the first token."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is drawn. The draw depends only on these and the tokens before it, never on the batch."""

    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose probability reaches this."""
    min_p: float = 0.0
    """Keep tokens at least this share as likely as the most likely one."""
    seed: int = 0
    """64 bits; drawn by the gateway when the client names none."""
    repetition_penalty: float = 1.0
    """A token of prompt or answer has its logit divided by this if it is positive and multiplied if it is not."""
    presence_penalty: float = 0.0
    """Taken from the logit of every token that is in the answer."""
    frequency_penalty: float = 0.0
    """Taken from a token's logit as often as it is in the answer."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(id, what is added to its logit), each id once, in order."""
    logprobs: int | None = None
    """Report log probabilities, and those of so many of the most likely tokens; None reports none. Changes no draw."""

    @property
    def has_penalties(self) -> bool:
        """Whether the draw depends on which tokens came before."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


@dataclass(frozen=True, slots=True)
class Stopping:
    """When an answer ends. Stop strings are not here: they are text, and the gateway's."""

    max_tokens: int
    """Counts all tokens of the answer, those of earlier attempts included."""
    min_tokens: int = 0
    """No stop id is drawn before this many tokens."""
    stop_ids: frozenset[int] = frozenset()
    """The model's end tokens and the client's own; empty with `ignore_eos`."""


@dataclass(frozen=True, slots=True)
class Request:
    """One attempt at one answer. A worker's state for it is a pure function of this object."""

    key: RequestKey
    prompt: tuple[int, ...]
    sampling: Sampling
    stopping: Stopping
    emitted: tuple[int, ...] = ()
    """Tokens already given to the client by earlier attempts, in order."""
    role: Role = Role.WHOLE
    salt: bytes = b""
    """Keeps one tenant's cached blocks apart from another's."""
    priority: int = 0
    """Higher goes before its client's others, in a worker before all, by so many head starts
    (`BatchLimits.head_start`)."""
    client: str = ""
    """Whose it is, as a digest: clients of one class share its places. Empty: nobody's in particular."""
    traffic_class: str = ""
    """Name of the class it is queued and limited with; empty: the default."""
    deadline: float | None = field(default=None, compare=False)
    """On the clock of the process that holds this object; None if there is none."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and emitted tokens: all that is known."""
        return self.prompt + self.emitted

    def next_attempt(self, emitted: tuple[int, ...]) -> Self:
        """The same request begun again elsewhere after `emitted` reached the client."""
        key = RequestKey(self.key.request_id, self.key.attempt + 1)
        return replace(self, key=key, emitted=emitted)

    def choice(self, index: int) -> Self:
        """The request for answer `index` of several to the same prompt; answer 0 is the request itself."""
        if index == 0:
            return self
        key = RequestKey(RequestId(f"{self.key.request_id}.{index}"), self.key.attempt)
        return replace(self, key=key, sampling=replace(self.sampling, seed=choice_seed(self.sampling.seed, index)))
