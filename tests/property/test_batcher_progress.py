"""Nobody waits for ever: what is there ends within a bound on steps, and newcomers, however important, only move it."""

from math import ceil
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from services.core.batch_limits import BatchLimits
from services.core.request import Request, Role, Stopping
from tests.property.test_batcher import STEMS, limits_of, request_of
from tests.support.batch_world import STEP_SECONDS, BatchWorld
from tests.support.cell_engine import MAX_CONTEXT

HEAD_START = 4.0
MOST_IMPORTANT = 2


def some_request(random: Random, priority: int) -> Request:
    prompt = random.choice(STEMS)[: random.choice((1, 4, 8, 11, 12))]
    return request_of(Role.WHOLE, prompt, Stopping(random.choice((1, 4, 8))), priority)


def some_limits(random: Random) -> BatchLimits:
    """Blocks for any one request, and mostly too few for two."""
    size, spare = random.randint(1, 4), random.randint(0, 2)
    budget, watermark = random.choice((1, 3, 12)), random.choice((0, 2))
    extra = ceil(MAX_CONTEXT / size) - 12 // size + spare
    return limits_of(size, extra, random.randint(1, 4), budget, watermark, HEAD_START)


def steps_in_front(limits: BatchLimits, request: Request) -> int:
    """Most steps to its end for the first in rank: a block a step at least, what it was robbed of too, then tokens."""
    most = len(request.prompt) + request.stopping.max_tokens
    return ceil(most / limits.block_size) + request.stopping.max_tokens + 1


@given(st.integers(0, 1 << 32))
@settings(max_examples=60, deadline=None)
def test_whoever_preempts_whom_all_end_in_as_many_steps_as_one_after_the_other(seed: int) -> None:
    random = Random(seed)
    world = BatchWorld(some_limits(random), copied=frozenset())
    for _ in range(8):
        world.add(some_request(random, random.randint(0, MOST_IMPORTANT)), 0, None)
        for _ in range(random.randint(0, 4)):
            world.work()
    live = [story.request for story in world.stories.values() if story.ending is None]
    for _ in range(sum(steps_in_front(world.limits, request) for request in live)):
        world.work()
        world.check()
    assert not world.batcher.holdings(world.now)
    world.finish()


@given(st.integers(0, 1 << 32))
@settings(max_examples=20, deadline=None)
def test_an_endless_stream_of_more_important_requests_only_delays(seed: int) -> None:
    random = Random(seed)
    limits = some_limits(random)
    world = BatchWorld(limits, copied=frozenset())
    world.add(some_request(random, 0), 0, None)
    (modest,) = world.stories.values()
    ahead = limits.max_waiting + limits.max_running + 1
    slowest = steps_in_front(limits, request_of(Role.WHOLE, STEMS[0], Stopping(8)))
    last = MOST_IMPORTANT * HEAD_START + ahead * slowest * STEP_SECONDS
    while modest.ending is None:
        assert world.now <= last, "starved"
        while world.batcher.num_waiting < limits.max_waiting:
            world.add(some_request(random, random.randint(1, MOST_IMPORTANT)), 0, None)
        world.work()
        world.check()
    world.finish()
