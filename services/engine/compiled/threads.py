"""The threads that compute a step together. They sleep between steps, and each may have a processor of its own."""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

Part = Callable[[int], None]
"""One thread's part, called with the thread's number."""


class Threads:
    """Runs a part on every thread, the caller's included as number 0. To be closed."""

    def __init__(self, count: int, cores: Sequence[int] = ()) -> None:
        """With `cores`, thread i keeps to the i-th of them, counting round."""
        self.count = count
        self._cores = tuple(cores)
        self._pinned: int | None = None
        """The caller's thread, once it keeps to its processor."""
        # One pool each, so that number i is always the same thread.
        self._others = [
            ThreadPoolExecutor(1, thread_name_prefix=f"compute-{number}", initializer=self._pin, initargs=(number,))
            for number in range(1, count)
        ]

    def run(self, part: Part) -> None:
        """Returns when all have done their part. Raises what one of them raised."""
        if self._pinned != threading.get_ident():
            self._pin(0)
            self._pinned = threading.get_ident()
        parts = [other.submit(part, number) for number, other in enumerate(self._others, start=1)]
        part(0)
        for done in parts:
            done.result()

    def close(self) -> None:
        for other in self._others:
            other.shutdown()

    def _pin(self, number: int) -> None:
        if self._cores:
            os.sched_setaffinity(0, {self._cores[number % len(self._cores)]})
