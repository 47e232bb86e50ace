"""The record of one placement: who was considered, what each would cost, who was taken and why. Pure data.

A cost is seconds of waiting, of whoever waits: of the request until its first token, of it between tokens, and of the
streams beside it that are held up. What is no cost but explains one has its own field.
"""

from dataclasses import dataclass

SHOWN = 5
"""Candidates of one role that a record keeps, the cheapest first; of the others it keeps the number."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One worker in one role, as the policy saw it."""

    role: str
    """`prefill`, `decode`, or `local`: prefilling on the decode worker."""
    worker: str
    """Name, for people."""
    cost: float
    """Seconds; the least wins."""
    terms: tuple[tuple[str, float], ...] = ()
    """(name, seconds): wait, transfer, compute, handover, itl, stall; they add up to the cost."""
    cached_blocks: int = 0
    """Blocks of the prompt that it holds or would fetch."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What one placement was made of."""

    policy: str = ""
    prefill: str = ""
    """Address; empty if the decode worker prefills."""
    decode: str = ""
    """Address."""
    reason: str = ""
    """Why this and not the other way, in one short sentence."""
    candidates: tuple[Candidate, ...] = ()
    others: int = 0
    """Candidates that are not shown."""
    ttft: float = 0.0
    """Expected seconds from now to the first token."""
    prefill_seconds: float = 0.0
    """Of that, what the computing worker is busy with this request."""
    itl: float = 0.0
    """Expected seconds between tokens on the decode worker, this request with it."""
    uncached_tokens: int = 0
    """Tokens to be computed before the first one is drawn."""
    chosen: tuple[Candidate, ...] = ()
    """The workers that were taken, in their roles."""

    @property
    def computes(self) -> str:
        """Address of the worker that computes the prompt."""
        return self.prefill or self.decode

    def attributes(self) -> dict[str, str | float]:
        """For a span: what was expected, and what the chosen workers cost, term by term."""
        numbers: dict[str, str | float] = {
            "diptych.policy": self.policy,
            "diptych.reason": self.reason,
            "diptych.candidates": len(self.candidates) + self.others,
            "diptych.expected.ttft_seconds": self.ttft,
            "diptych.expected.itl_seconds": self.itl,
            "diptych.expected.uncached_tokens": self.uncached_tokens,
        }
        for each in self.chosen:
            numbers |= {f"diptych.cost.{each.role}.{name}_seconds": seconds for name, seconds in each.terms}
        return numbers


NOTHING = Decision()
