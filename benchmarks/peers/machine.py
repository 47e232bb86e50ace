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
        torch.set_num_threads(options["threads"])
        self._threads = options["threads"]
        self._array = torch.ones(READ_BYTES // 4)
        self._left = torch.rand(MATRIX, MATRIX)
        self._right = torch.rand(MATRIX, MATRIX)
        self.extras()
        return {"torch": torch.__version__, "threads": options["threads"], "matrix": MATRIX, "read_bytes": READ_BYTES}

    def run(self, job: Job) -> Trace:
        raise NotImplementedError("the machine answers no requests")

    def logits(self, texts: list[list[int]], path: Path) -> None:
        raise NotImplementedError("the machine has no logits")

    def extras(self) -> Json:
        ways = (lambda: self._array.sum(), lambda: self._array.max(), lambda: torch.dot(self._array, self._array))
        read = min(_seconds(way) for way in ways)
        product = _seconds(lambda: torch.mm(self._left, self._right))
        return {
            "read_bytes_per_second": READ_BYTES / read,
            "flops_per_second": 2 * MATRIX**3 / product,
            "whole_per_second": max(product_rate.operations_per_second(self._threads) for _ in range(REPEATS)),
        }


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
