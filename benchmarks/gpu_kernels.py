"""Our GPU kernels against the device's limits and against torch.

    .venv/bin/python benchmarks/gpu_kernels.py --json

The limits are measured first: bytes per second of a large copy, FLOP per second of a large float16 product. A kernel's
share of its limit is the time that its unavoidable bytes and FLOPs would take at those rates, by the time it took.
"""

import argparse
import json
import sys
from collections.abc import Sequence

import torch

from gpu.clock import measured_limits, seconds
from gpu.contests import SHAPES, Sizes, contests
from gpu.report import Result, as_json, as_text
from services.engine.devices import step_on

NO_GPU = "no CUDA device here: these kernels are measured only on one (their values are tested by `make test`)"


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    if not torch.cuda.is_available():
        print(NO_GPU, file=sys.stderr)
        return 2
    device = torch.device("cuda")
    with torch.inference_mode(), step_on(device):
        limits = measured_limits(asked.repetitions)
        results = [
            Result(
                contest.name,
                contest.work,
                seconds(contest.ours, asked.repetitions),
                seconds(contest.theirs, asked.repetitions),
                contest.peer,
            )
            for contest in contests(SHAPES[asked.shape], Sizes(), device)
            if asked.only in contest.name
        ]
    told = (torch.cuda.get_device_name(device), limits, results)
    print(json.dumps(as_json(*told), indent=2) if asked.json else as_text(*told))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Our GPU kernels against the device's limits and against torch.")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--repetitions", type=_positive, default=30, help="times each is run; the median counts")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b", help="sizes of the model")
    parser.add_argument("--only", default="", metavar="TEXT", help="kernels whose name contains this")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


if __name__ == "__main__":
    raise SystemExit(main())
