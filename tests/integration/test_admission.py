"""Admission with a real scheduler before real workers: who is begun, who is refused, and when each is told."""

import asyncio
from dataclasses import replace

from services.core.errors import DeadlinePassed, NeverFits, Overloaded, QueueTimeout
from tests.support.scripted_cluster import LIMITS, Answer, scripted_cluster

SLOW = {"decode": {"decode.step": 0.01}}
ONE_PLACE = replace(LIMITS, max_running=1)
PROMPT = range(3, 20)


async def error_of(answer: Answer) -> Exception | None:
    return (await answer.end()).error


async def test_under_overload_the_important_are_served_and_the_others_hear_at_once_when_to_come_back() -> None:
    classes = {"gold": {"level": 1, "weight": 4}, "batch": {"level": -1, "queue_timeout": 20}}
    settings = {"max_queue": 4, "classes": classes, "queue_timeout": 20}
    async with scripted_cluster(prefill=0, limits=ONE_PLACE, faults=SLOW, scheduling=settings) as cluster:
        first = cluster.caller.start(PROMPT, 900)
        await first.until(1)
        batch = [cluster.caller.start(PROMPT, 2, traffic_class="batch", client="b") for _ in range(12)]
        refused = await first_over(batch, 8)
        assert all(isinstance(answer.error, Overloaded) and answer.error.retry_after > 0 for answer in refused)
        gold = [cluster.caller.start(PROMPT, 2, traffic_class="gold", client=f"g{n}") for n in range(3)]
        gave_way = await first_over([answer for answer in batch if answer not in refused], 3)
        assert all(isinstance(answer.error, Overloaded) for answer in gave_way)
        assert first.reason is None, "nobody waited for a place to hear it"
        cluster.caller.cancel(first)
        assert [await error_of(answer) for answer in gold] == [None, None, None]
        assert [await error_of(answer) for answer in batch].count(None) == 1
        loads = {load.name: load for load in (await cluster.status("scheduler-0")).load.classes}
        assert (loads["batch"].shed, loads["gold"].shed) == (11, 0)


async def first_over(answers: list[Answer], count: int) -> list[Answer]:
    """The first so many to end."""
    ends = [asyncio.create_task(answer.end()) for answer in answers]
    over: list[Answer] = []
    for end in asyncio.as_completed(ends):
        over.append(await end)
        if len(over) == count:
            break
    for end in ends:
        end.cancel()
    await asyncio.gather(*ends, return_exceptions=True)
    return over


async def test_a_class_says_how_long_its_requests_wait_and_a_deadline_is_told_when_it_passes() -> None:
    settings = {"classes": {"hasty": {"queue_timeout": 0.3}}, "queue_timeout": 20}
    async with scripted_cluster(prefill=0, limits=ONE_PLACE, faults=SLOW, scheduling=settings) as cluster:
        clock = asyncio.get_running_loop().time
        first = cluster.caller.start(PROMPT, 500)
        await first.until(1)
        began = clock()
        hasty = cluster.caller.start(PROMPT, 2, traffic_class="hasty")
        late = cluster.caller.start(PROMPT, 2, deadline=began + 0.6)
        patient = cluster.caller.start(PROMPT, 2)
        assert isinstance(await error_of(hasty), QueueTimeout)
        assert clock() - began >= 0.3
        assert isinstance(await error_of(late), DeadlinePassed)
        assert clock() - began >= 0.6
        assert not patient.is_over
        cluster.caller.cancel(first)
        assert await error_of(patient) is None


async def test_what_never_fits_is_told_at_arrival_by_what_the_workers_say_they_hold() -> None:
    async with scripted_cluster(limits=replace(ONE_PLACE, num_blocks=6), faults=SLOW) as cluster:
        first = cluster.caller.start(PROMPT, 60)
        await first.until(1)
        large = cluster.caller.start(range(3, 110), 2)
        assert isinstance(await error_of(large), NeverFits)
        assert first.reason is None
        assert await error_of(first) is None


async def test_a_worker_without_a_queue_is_kept_busy_and_nobody_is_lost() -> None:
    limits = replace(LIMITS, max_running=2, max_waiting=0)
    async with scripted_cluster(prefill=0, limits=limits, scheduling={"queue_timeout": 20}) as cluster:
        answers = [cluster.caller.start(range(3, 10 + number), 5) for number in range(12)]
        assert [(await answer.end()).error for answer in answers] == [None] * 12
