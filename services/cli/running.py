"""Runs a command's coroutine under signals: the first one lets it clean up, a further one hurries it."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. Every ending signal cancels it; raises KeyboardInterrupt if that ended it."""
    with asyncio.Runner() as runner:
        try:
            return runner.run(_cancelled_by_signals(work))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


async def _cancelled_by_signals(work: Coroutine[Any, Any, T]) -> T:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    for number in ENDING_SIGNALS:
        loop.add_signal_handler(number, task.cancel)
    return await work
