"""The thread that copies blocks, beside the one that computes: one piece of work at a time, urgent ones first.

What runs here should release the interpreter's lock while it copies. A cancellation is held back until the copy has
returned, so whoever awaited it knows that nothing touches its blocks any more.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

Job = Callable[[], None]


class TransferThread:
    """Runs from its making until it is closed."""

    def __init__(self) -> None:
        self._urgent: deque[Job] = deque()
        self._patient: deque[Job] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="transfer", daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[], T], *, urgent: bool = True) -> T:
        """What `work` returns or raises. Work that is not urgent runs only when no urgent work waits."""
        line = self._urgent if urgent else self._patient
        outcome, job = self._given(work, line)
        try:
            return await asyncio.shield(outcome)
        except asyncio.CancelledError:
            if not self._is_taken_back(line, job):
                await settled(outcome)
            raise

    async def run_each(self, works: Iterable[Callable[[], T]], took: Callable[[T], None]) -> None:
        """As `run`, for one after the other: the thread has the next before `took` hears what one has returned.

        Raises what any of them, or `took`, raises first; what has not begun by then never will.
        """
        ahead: deque[tuple[asyncio.Future[T], Job]] = deque()
        try:
            for work in works:
                ahead.append(self._given(work, self._urgent))
                if len(ahead) > 1:
                    took(await _first(ahead))
            while ahead:
                took(await _first(ahead))
        finally:
            # The last first, so that none begins meanwhile.
            under_way = [outcome for outcome, job in reversed(ahead) if not self._is_taken_back(self._urgent, job)]
            for outcome in under_way:
                await settled(outcome)

    def close(self) -> None:
        """Once nothing is awaited any more; returns when the thread has ended."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _given(self, work: Callable[[], T], line: deque[Job]) -> "tuple[asyncio.Future[T], Job]":
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        job = _job(work, outcome)
        with self._changed:
            line.append(job)
            self._changed.notify()
        return outcome, job

    def _is_taken_back(self, line: deque[Job], job: Job) -> bool:
        """Whether the job had not begun, and now never will."""
        with self._changed:
            if job not in line:
                return False
            line.remove(job)
            return True

    def _work(self) -> None:
        while (job := self._next()) is not None:
            job()

    def _next(self) -> Job | None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._urgent or self._patient)
            for line in (self._urgent, self._patient):
                if line:
                    return line.popleft()
            return None


def _job(work: Callable[[], T], outcome: "asyncio.Future[T]") -> Job:
    """`work` as the thread runs it; its outcome is told on the loop of whoever asked."""
    tell = outcome.get_loop().call_soon_threadsafe

    def run() -> None:
        try:
            found = work()
        except BaseException as error:  # noqa: BLE001  # whatever it is, it is told where it is awaited
            tell(outcome.set_exception, error)
        else:
            tell(outcome.set_result, found)

    return run


async def _first(ahead: "deque[tuple[asyncio.Future[T], Job]]") -> T:
    """What the first returns or raises; it is in `ahead` until then."""
    await asyncio.wait([ahead[0][0]])
    return ahead.popleft()[0].result()


async def settled(outcome: "asyncio.Future[T]") -> None:
    """For whoever cleans up: returns when `outcome` is there, however often that is cancelled. What it is, is passed
    over."""
    while not outcome.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([outcome])
    if not outcome.cancelled():
        outcome.exception()
