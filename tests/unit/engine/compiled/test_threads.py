"""Threads that compute together."""

import os
import threading

import pytest

from services.engine.compiled.threads import Threads


def test_every_thread_does_its_part_and_the_caller_is_the_first() -> None:
    threads = Threads(3)
    seen: dict[int, int] = {}
    threads.run(lambda number: seen.update({number: threading.get_ident()}))
    again: dict[int, int] = {}
    threads.run(lambda number: again.update({number: threading.get_ident()}))
    threads.close()
    assert sorted(seen) == [0, 1, 2] and len(set(seen.values())) == 3
    assert seen[0] == threading.get_ident() and again == seen


def test_an_error_of_any_thread_reaches_the_caller_and_the_next_step_runs() -> None:
    threads = Threads(2)

    def part(number: int) -> None:
        if number == 1:
            raise RuntimeError("out of order")

    with pytest.raises(RuntimeError, match="out of order"):
        threads.run(part)
    done: list[int] = []
    threads.run(done.append)
    threads.close()
    assert sorted(done) == [0, 1]


def test_threads_keep_to_the_processors_they_are_given() -> None:
    core = sorted(os.sched_getaffinity(0))[0]
    threads = Threads(2, (core,))
    seen: list[set[int]] = []

    def run() -> None:
        threads.run(lambda number: seen.append(os.sched_getaffinity(0)))

    caller = threading.Thread(target=run)
    caller.start()
    caller.join()
    threads.close()
    assert seen == [{core}, {core}]
