"""A contender without an engine: a token a hundredth of a second, whatever it is asked. Run with `-m`."""

import os
from pathlib import Path

import numpy as np

from peers.channel import Job, Json, serve
from peers.trace import Trace


class Scripted:
    def load(self, options: Json) -> Json:
        self._mood = options.get("mood", "")
        print("a library greets")
        if self._mood == "dies":
            os._exit(3)
        return {"mood": self._mood, "threads": os.environ["OMP_NUM_THREADS"], "weight_bytes": 1000}

    def run(self, job: Job) -> Trace:
        if self._mood == "fails":
            raise RuntimeError("the engine broke")
        count = job.workload.answer_tokens - (self._mood == "short")
        times = tuple((at + 1) / 100 for at in range(count))
        return Trace(job.workload.prompt_tokens, (times,) * len(job.prompts), ((job.prompts[0][0],) * count,))

    def logits(self, texts: list[list[int]], path: Path) -> None:
        np.save(path, np.zeros((sum(map(len, texts)), 3), np.float32))

    def extras(self) -> Json:
        if self._mood == "machine":
            return {"read_bytes_per_second": 1e9, "flops_per_second": 1e9, "whole_per_second": 1e9}
        return {"profile": {"step_seconds": 0.01, "rows": 16, "linear": 0.9}, "bookkeeping_share": 0.1}


if __name__ == "__main__":
    serve(Scripted())
