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
