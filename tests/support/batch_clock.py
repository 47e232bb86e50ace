"""The real batch on virtual time, one step after the other: when each request has its first and its last token."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.core.batch_limits import BatchLimits
from services.core.batcher import Batcher
from services.core.ids import RequestId, RequestKey
from services.core.plan import Drawn, StepPlan, StepResult
from services.core.request import Request, Sampling, Stopping

ANSWER_TOKEN = 7


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for a worker by itself."""

    at: float
    prompt: tuple[int, ...]
    answer: int


def batch_times(limits: BatchLimits, requests: Sequence[Asked]) -> list[tuple[float, float]]:
    """(first token, last token) of each; `requests` in order of arrival."""
    batcher = Batcher(limits, b"model")
    coming = list(enumerate(requests))
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    now = 0.0
    while coming or batcher.num_waiting or batcher.num_running:
        _come(batcher, coming, now)
        batcher.admit(now)
        plan = batcher.plan(now)
        if plan is None:
            now = coming[0][1].at
            continue
        seconds = limits.cost.of((len(chunk.tokens), chunk.start) for chunk in plan.chunks)
        now += seconds
        _come(batcher, coming, now)
        for key in _drawing(plan):
            first.setdefault(key.request_id, now)
            last[key.request_id] = now
        batcher.apply(StepResult({key: Drawn(ANSWER_TOKEN) for key in _drawing(plan)}, seconds=seconds), now)
    return [(first[str(number)], last[str(number)]) for number in range(len(requests))]


def _come(batcher: Batcher, coming: list[tuple[int, Asked]], now: float) -> None:
    while coming and coming[0][1].at <= now:
        number, asked = coming.pop(0)
        key = RequestKey(RequestId(str(number)))
        batcher.add(Request(key, asked.prompt, Sampling(), Stopping(asked.answer)), asked.at)


def _drawing(plan: StepPlan) -> list[RequestKey]:
    return [chunk.key for chunk in plan.chunks if chunk.draw is not None]
