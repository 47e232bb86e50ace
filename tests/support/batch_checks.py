"""What must hold of every admission and every plan, told from outside: from requests, events and holdings alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from services.core.batch_events import Event, Preempted, Started
from services.core.batch_limits import BatchLimits
from services.core.ids import RequestKey
from services.core.plan import StepPlan
from services.core.progress import Holding, State
from services.core.request import FinishReason, Request


@dataclass
class Story:
    """What the outside knows of one request."""

    request: Request
    rank: tuple[float, int]
    emitted: list[int] = field(default_factory=list)
    awaits_first: bool = False
    ending: FinishReason | str | None = None
    computed: int | None = None
    """Positions, by its latest chunk; unknown before that and after a preemption."""
    known_blocks: int = 0
    """Blocks that a store claims to hold."""
    landed: set[int] = field(default_factory=set)
    """Indexes of blocks that were filled since it started."""

    @property
    def known(self) -> tuple[int, ...]:
        return self.request.prompt + tuple(self.emitted)


Stories = Mapping[RequestKey, Story]


def check_admission(
    stories: Stories, before: Sequence[Holding], events: Sequence[Event], after: Sequence[Holding]
) -> None:
    """Nobody jumps the queue, and nobody gives way but to one before it in rank that gains by it."""
    waiting = {holding.key for holding in after if holding.state is State.WAITING}
    started = {event.key for event in events if isinstance(event, Started)}
    assert all(stories[key].rank < stories[other].rank for key in started for other in waiting), "queue jumped"
    held = {holding.key: holding.blocks for holding in before}
    gained = started | {holding.key for holding in after if holding.blocks > held[holding.key]}
    for event in events:
        if isinstance(event, Preempted):
            ahead = {key for key in gained if stories[key].rank < stories[event.key].rank}
            assert ahead, "preempted for nobody"
            assert event.key in started or ahead == gained, "preempted, and one behind it gained"


def check_order(stories: Stories, limits: BatchLimits, after: Sequence[Holding]) -> None:
    """Where no transfer holds a block, the first in rank of all holds what it needs."""
    first = min(after, key=lambda holding: stories[holding.key].rank)
    if all(other.state is State.RUNNING for other in after if other is not first and other.state is not State.WAITING):
        assert first.state is not State.WAITING, "the first in rank waits for less important ones"
        is_short = len(stories[first.key].known) > first.blocks * limits.block_size
        assert first.state is not State.RUNNING or not is_short, "the first in rank lacks what less important ones hold"


def check_plan(stories: Stories, limits: BatchLimits, plan: StepPlan | None, holdings: Sequence[Holding]) -> None:
    """Decode rows first and all of them, then prompts, until the budget is spent or nothing is left to compute."""
    chunks = {} if plan is None else {chunk.key: chunk for chunk in plan.chunks}
    assert len(chunks) <= limits.max_running and (plan is None or len(chunks) == len(plan.chunks) > 0)
    running = {holding.key: holding.blocks for holding in holdings if holding.state is State.RUNNING}
    computable = {key for key, blocks in running.items() if len(stories[key].known) <= blocks * limits.block_size}
    decodes = {key for key in computable if stories[key].computed == len(stories[key].known) - 1}
    assert decodes <= set(chunks) <= computable, "an answer is left out, or one without its blocks is not"
    lengths = [len(chunk.tokens) for chunk in chunks.values()]
    singles = sum(1 for length in lengths if length == 1)
    assert sum(lengths) <= max(limits.step_seconds, singles + limits.block_size), "over the budget"
    size = limits.block_size
    gaps = {key for key, chunk in chunks.items() if (chunk.start + len(chunk.tokens)) / size in stories[key].landed}
    unfinished = {key for key in computable - gaps if key not in chunks or chunks[key].draw is None}
    assert not unfinished or sum(lengths) >= limits.step_seconds, "work is left, and budget too"
    for key, chunk in chunks.items():
        known = stories[key].known
        end = chunk.start + len(chunk.tokens)
        computed = range(chunk.start // size, -(-end // size))
        assert not stories[key].landed.intersection(computed), "a block that has landed is computed again"
        assert chunk.tokens == known[chunk.start : end] != ()
        assert len(chunk.blocks) * limits.block_size >= end
        assert (chunk.draw is not None) == (end == len(known))
        assert chunk.draw is None or chunk.draw.position == end
