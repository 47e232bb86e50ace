"""The thread that copies: in which order, and what a cancellation waits for."""

import asyncio
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from services.core.errors import KVCorrupt
from services.runtime.transfer_thread import TransferThread


@pytest.fixture
def thread() -> Iterator[TransferThread]:
    made = TransferThread()
    yield made
    made.close()


class Copy:
    """A copy that lasts until the test says so."""

    def __init__(self) -> None:
        self.has_begun, self.may_return = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.has_begun.set()
        assert self.may_return.wait(5)
        return "copied"


async def test_what_the_work_returns_or_raises_is_told_where_it_is_awaited(thread: TransferThread) -> None:
    def broken() -> None:
        raise KVCorrupt("no")

    assert await thread.run(lambda: 7) == 7
    with pytest.raises(KVCorrupt):
        await thread.run(broken)
    assert await thread.run(threading.current_thread) is not threading.current_thread()


async def test_urgent_work_goes_first_and_the_rest_in_order(thread: TransferThread) -> None:
    copy, done = Copy(), []
    first = asyncio.create_task(thread.run(copy))
    await asyncio.to_thread(copy.has_begun.wait, 5)
    others = [
        asyncio.create_task(thread.run(partial(done.append, name), urgent=name.startswith("urgent")))
        for name in ("patient 1", "patient 2", "urgent 1", "urgent 2")
    ]
    await asyncio.sleep(0)
    copy.may_return.set()
    await asyncio.gather(first, *others)
    assert done == ["urgent 1", "urgent 2", "patient 1", "patient 2"]


async def test_a_cancellation_is_held_back_until_the_copy_has_returned(thread: TransferThread) -> None:
    copy = Copy()
    task = asyncio.create_task(thread.run(copy))
    await asyncio.to_thread(copy.has_begun.wait, 5)
    for _ in range(3):
        task.cancel()
        await asyncio.wait([task], timeout=0.02)
        assert not task.done()
    copy.may_return.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_work_that_is_cancelled_before_it_begins_is_never_done(thread: TransferThread) -> None:
    copy, done = Copy(), []
    first = asyncio.create_task(thread.run(copy))
    await asyncio.to_thread(copy.has_begun.wait, 5)
    waiting = asyncio.create_task(thread.run(partial(done.append, "late")))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    copy.may_return.set()
    assert await first == "copied"
    await thread.run(lambda: None)
    assert not done


async def test_the_next_piece_of_work_has_begun_before_the_outcome_of_one_is_looked_at(thread: TransferThread) -> None:
    begun = [threading.Event() for _ in range(3)]
    took: list[int] = []

    def work(number: int) -> int:
        begun[number].set()
        return number

    def look(number: int) -> None:
        later = begun[number + 1 : number + 2]
        assert all(each.wait(5) for each in later)
        took.append(number)

    await thread.run_each((partial(work, number) for number in range(3)), look)
    assert took == [0, 1, 2]


@pytest.mark.parametrize("who", ["work", "took"])
async def test_what_one_of_many_raises_is_raised_when_no_other_runs(thread: TransferThread, who: str) -> None:
    running, may_end, done = threading.Event(), threading.Event(), threading.Event()

    def work(number: int) -> int:
        if number == 0 and who == "work":
            raise KVCorrupt("bad")
        if number == 1:
            running.set()
            assert may_end.wait(5)
            done.set()
        return number

    def took(number: int) -> None:
        assert running.wait(5)
        asyncio.get_running_loop().call_later(0.01, may_end.set)
        raise KVCorrupt("bad")

    asyncio.get_running_loop().call_later(0.1 if who == "work" else 5, may_end.set)
    works = [partial(work, number) for number in range(5)]
    with pytest.raises(KVCorrupt):
        await thread.run_each(works, took)
    assert running.is_set() == done.is_set()


async def test_many_pieces_of_work_that_are_cancelled_end_with_the_one_that_runs(thread: TransferThread) -> None:
    running, may_end = threading.Event(), threading.Event()
    count: list[int] = []

    def work() -> None:
        running.set()
        assert may_end.wait(5)
        count.append(1)

    task = asyncio.create_task(thread.run_each([work] * 4, lambda _: None))
    await asyncio.to_thread(running.wait, 5)
    task.cancel()
    await asyncio.wait([task], timeout=0.05)
    assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert count == [1]
