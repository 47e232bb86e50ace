"""Short ways to write down batcher scenarios: blocks of four tokens, a step's budget in tokens."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from services.core.batch_events import Event
from services.core.batch_limits import BatchLimits
from services.core.batcher import Batcher
from services.core.ids import RequestId, RequestKey
from services.core.plan import Drawn, StepPlan, StepResult
from services.core.request import Request, Role, Sampling, Stopping
from services.core.step_cost import StepCost

E = TypeVar("E", bound=Event)

LIMITS = BatchLimits(
    block_size=4,
    num_blocks=16,
    max_running=8,
    max_waiting=8,
    max_context=64,
    step_seconds=100,
    cost=StepCost(0.0, 1.0, 0.0),
    watermark_blocks=0,
)


def key(name: str) -> RequestKey:
    return RequestKey(RequestId(name))


def request(
    name: str, prompt: Sequence[int], max_tokens: int = 8, role: Role = Role.WHOLE, priority: int = 0
) -> Request:
    return Request(key(name), tuple(prompt), Sampling(), Stopping(max_tokens), role=role, priority=priority)


def of_kind(events: Iterable[Event], kind: type[E]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


class Worker:
    """A batcher at time 0 whose engine draws what the test says, 7 by default."""

    def __init__(self, limits: BatchLimits = LIMITS) -> None:
        self.limits = limits
        self.batcher = Batcher(limits, b"weights")

    def add(self, *requests: Request) -> None:
        for each in requests:
            self.batcher.add(each, 0.0)

    def admit(self) -> list[Event]:
        return self.batcher.admit(0.0)

    def plan(self) -> StepPlan:
        plan = self.batcher.plan(0.0)
        assert plan is not None
        return plan

    def apply(self, plan: StepPlan, token: int = 7) -> list[Event]:
        drawn = {chunk.key: Drawn(token) for chunk in plan.chunks if chunk.draw is not None}
        return self.batcher.apply(StepResult(drawn), 0.0)

    def step(self, token: int = 7) -> list[Event]:
        """One whole cycle; its events."""
        admitted = self.admit()
        events = admitted + self.apply(self.plan(), token)
        self.batcher.check_invariants()
        return events

    def run(self) -> list[Event]:
        """Steps until nothing is left; their events."""
        events: list[Event] = []
        for _ in range(200):
            if not self.batcher.holdings(0.0):
                return events
            events += self.step()
        raise AssertionError("a request never ends")

    def lengths(self) -> dict[str, int]:
        """Tokens per request in the next step, which is then taken."""
        self.admit()
        plan = self.plan()
        self.apply(plan)
        return {chunk.key.request_id: len(chunk.tokens) for chunk in plan.chunks}

    @property
    def idle_blocks(self) -> int:
        return self.batcher.free_blocks + self.batcher.cached_blocks
