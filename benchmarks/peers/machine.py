"""The machine's own limits, measured like a contender: read bandwidth, and how fast it multiplies.

Run beside the others in every repetition, for a shared machine does not have the same limits all day.
"""

import time
from collections.abc import Callable
from pathlib import Path

import torch

from peers import product_rate
from peers.channel import Job, Json, serve
from peers.trace import Trace

READ_BYTES = 1 << 29
"""Half a gigabyte: many times the largest cache of a processor of this kind."""
MATRIX = 2048
REPEATS = 3
"""The quickest counts: a limit is what is possible."""


class Machine:
    """Not a contender in what it computes, but driven as one; its answers are in `extras`."""

    def load(self, options: Json) -> Json:
        """Options: `threads`, and `step_bytes`, what a decode step reads, if that is to be read as a step does it."""
        torch.set_num_threads(options["threads"])
        self._threads = options["threads"]
        self._array = torch.ones(READ_BYTES // 4)
        # A step reads the same bytes as the one before, and a large cache may hold many of them.
        self._again = self._array[: min(options.get("step_bytes", READ_BYTES), READ_BYTES) // 4]
        self._left = torch.rand(MATRIX, MATRIX)
        self._right = torch.rand(MATRIX, MATRIX)
        self.extras()
        return {"torch": torch.__version__, "threads": options["threads"], "matrix": MATRIX, "read_bytes": READ_BYTES}

    def run(self, job: Job) -> Trace:
        raise NotImplementedError("the machine answers no requests")

    def logits(self, texts: list[list[int]], path: Path) -> None:
        raise NotImplementedError("the machine has no logits")

    def extras(self) -> Json:
        product = _seconds(lambda: torch.mm(self._left, self._right))
        return {
            "read_bytes_per_second": max(_read_rate(array) for array in (self._array, self._again)),
            "flops_per_second": 2 * MATRIX**3 / product,
            "whole_per_second": max(product_rate.operations_per_second(self._threads) for _ in range(REPEATS)),
        }


def _read_rate(array: torch.Tensor) -> float:
    """Bytes per second, the best of three ways to read it."""
    ways = (array.sum, array.max, lambda: torch.dot(array, array))
    return array.nbytes / min(_seconds(way) for way in ways)


def _seconds(work: Callable[[], object]) -> float:
    best = float("inf")
    with torch.inference_mode():
        for _ in range(REPEATS):
            began = time.perf_counter()
            work()
            best = min(best, time.perf_counter() - began)
    return best


if __name__ == "__main__":
    serve(Machine())
