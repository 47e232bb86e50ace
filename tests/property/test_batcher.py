"""Random requests, cancels, transfers and steps in any order, on pools too small for them."""

from collections import Counter
from random import Random
from typing import get_args

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.core.batch_events import Event
from services.core.batch_limits import BatchLimits
from services.core.ids import RequestId, RequestKey
from services.core.prefix_fetch import FetchCost, KnownPrefix
from services.core.request import Request, Role, Sampling, Stopping
from services.core.step_cost import StepCost
from tests.support.batch_world import BatchWorld
from tests.support.cell_engine import MAX_CONTEXT

STEMS = ((1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2), (1, 2, 3, 4, 2, 2, 2, 2, 2, 2, 2, 2), (0,) * 12)
PICKS = st.integers(0, 7)


def limits_of(
    block_size: int, extra_blocks: int, max_running: int, tokens_per_step: int, watermark: int, head_start: float
) -> BatchLimits:
    return BatchLimits(
        block_size=block_size,
        num_blocks=12 // block_size + extra_blocks,
        max_running=max_running,
        max_waiting=4,
        max_context=MAX_CONTEXT,
        step_seconds=tokens_per_step,
        cost=StepCost(0.0, 1.0, 0.0),
        watermark_blocks=watermark,
        head_start=head_start,
    )


LIMITS = st.builds(
    limits_of,
    block_size=st.integers(1, 4),
    extra_blocks=st.integers(0, 4),
    max_running=st.integers(1, 4),
    tokens_per_step=st.sampled_from((1, 3, 12)),
    watermark=st.integers(0, 2),
    head_start=st.sampled_from((0.0, 1.0, 1000.0)),
)


def request_of(
    role: Role, prompt: tuple[int, ...], stopping: Stopping, priority: int = 0, salt: bytes = b""
) -> Request:
    key = RequestKey(RequestId("named later"))
    return Request(key, prompt, Sampling(), stopping, role=role, priority=priority, salt=salt)


def prefix_of(blocks: int) -> KnownPrefix:
    """Cheaper than computing from the second block on."""
    return KnownPrefix(blocks, FetchCost(1.5, 0.1))


STOPPINGS = st.builds(
    Stopping,
    max_tokens=st.integers(1, 8),
    min_tokens=st.integers(0, 3),
    stop_ids=st.sampled_from((frozenset[int](), frozenset({3}))),
)
REQUESTS = st.builds(
    request_of,
    role=st.sampled_from((Role.WHOLE, Role.PREFILL, Role.DECODE)),
    prompt=st.builds(lambda stem, length: stem[:length], st.sampled_from(STEMS), st.integers(1, 12)),
    stopping=STOPPINGS,
    priority=st.integers(0, 2),
    salt=st.sampled_from((b"", b"tenant")),
)


class BatcherMachine(RuleBasedStateMachine):
    """Each rule is one thing that happens to a worker."""

    @initialize(limits=LIMITS)
    def begin(self, limits: BatchLimits) -> None:
        self.world = BatchWorld(limits)

    @rule(
        request=REQUESTS,
        emitted=st.integers(0, 3),
        patience=st.none() | st.sampled_from((2.0, 5.0)),
        prefix=st.builds(prefix_of, st.integers(0, 12)),
    )
    def add(self, request: Request, emitted: int, patience: float | None, prefix: KnownPrefix) -> None:
        self.world.add(request, emitted, patience, prefix)

    @precondition(lambda self: self.world.stories)
    @rule(pick=PICKS)
    def cancel(self, pick: int) -> None:
        self.world.cancel(pick)

    @precondition(lambda self: self.world.step is None)
    @rule()
    def plan(self) -> None:
        self.world.plan()

    @precondition(lambda self: self.world.step is not None)
    @rule(broken=st.sampled_from((None, None, None, 0, 1)))
    def apply(self, broken: int | None) -> None:
        self.world.apply(broken)

    @rule(times=st.integers(1, 6))
    def work(self, times: int) -> None:
        for _ in range(times):
            self.world.work()
            self.world.check()

    @precondition(lambda self: self.world.fetches)
    @rule(pick=PICKS)
    def land(self, pick: int) -> None:
        self.world.land(pick)

    @precondition(lambda self: self.world.fetches)
    @rule(pick=PICKS)
    def lose(self, pick: int) -> None:
        self.world.lose(pick)

    @precondition(lambda self: self.world.stories)
    @rule(pick=PICKS)
    def no_more(self, pick: int) -> None:
        self.world.no_more(pick)

    @precondition(lambda self: self.world.awaiting_first())
    @rule(pick=PICKS)
    def first_token(self, pick: int) -> None:
        self.world.first_token(pick)

    @precondition(lambda self: self.world.copies)
    @rule(pick=PICKS)
    def copied_out(self, pick: int) -> None:
        self.world.copied_out(pick)

    @invariant()
    def books_balance(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish()


TestBatcher = BatcherMachine.TestCase
TestBatcher.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def add_some(world: BatchWorld, random: Random) -> None:
    stopping = Stopping(random.choice((1, 8, 8)), random.randint(0, 3), random.choice((frozenset(), frozenset({3}))))
    prompt = random.choice(STEMS)[: random.choice((1, 2, 3, 4, 8, 12))]
    salt = random.choice((b"", b"", b"tenant"))
    request = request_of(random.choice(tuple(Role)), prompt, stopping, random.randint(0, 2), salt)
    prefix = prefix_of(random.choice((0, 2, 12)))
    world.add(request, random.choice((0, 0, 2)), random.choice((None, None, 20.0)), prefix)


def something_happens(world: BatchWorld, random: Random) -> None:
    """Mostly work; transfers and first tokens come in any order, and now and then something is lost."""
    pick = random.randint(0, 7)
    chance = random.random()
    if chance < 0.2:
        add_some(world, random)
    elif chance < 0.4 and world.fetches:
        world.land(pick)
    elif chance < 0.5 and world.awaiting_first():
        world.first_token(pick)
    elif chance < 0.6 and world.copies:
        world.copied_out(pick)
    elif chance < 0.62 and world.fetches:
        world.lose(pick)
    elif chance < 0.65 and world.stories:
        random.choice((world.no_more, world.cancel))(pick)
    elif chance < 0.67 and world.step is not None:
        world.apply(broken=pick)
    else:
        world.work()


def busy_run(random: Random) -> BatchWorld:
    size, extra, max_running = random.randint(1, 4), random.randint(0, 4), random.randint(2, 5)
    budget, watermark, head_start = random.choice((2, 5, 12)), random.choice((0, 0, 2)), random.choice((1.0, 1000.0))
    world = BatchWorld(limits_of(size, extra, max_running, budget, watermark, head_start))
    for _ in range(400):
        something_happens(world, random)
        world.check()
    world.finish()
    return world


def test_long_busy_runs_end_with_every_answer_right_and_nothing_held() -> None:
    seen: Counter[type[Event]] = Counter()
    for seed in range(60):
        seen += busy_run(Random(seed)).seen
    rare = {kind: seen[kind] for kind in get_args(Event) if seen[kind] < 50}
    assert not rare, "the runs no longer reach what they are for"
