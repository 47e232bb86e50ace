"""Our engine and its peers on the same model and workloads, in one run.

    .venv/bin/python benchmarks/engine.py --json

Every contender is a process of its own; they take turns, so that a slow minute of the machine hits all of them, and
whoever waits does not compute. Printed are the medians of the repetitions. As JSON:

    ratios              W1_tokens_per_second, W1_ttft, W2_tokens_per_second, W3_tokens_per_second: peer -> ours ÷ peer
    best_peer           the same names -> the peer of comparable quality against which ours looks worst
    share_of_limit      W2: of the memory's read bandwidth; W3: of the rate of a large matrix product
    bookkeeping_share   of a decode step at batch 16: all that is not tensor work
    profile             where such a step's time goes, in shares; beside them `idle`: the share of the compute threads'
                        time that they used no processor, over a whole run
    medians, spread     contender -> workload -> measure
    quality             contender -> mean KL to float32 of the same file
    limits, settings, missing

Peers are installed by `make bench-peers`.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from peers.child import ContenderFailed
from peers.contest import Contest, Plan
from peers.field import VLLM_PYTHON, Model, contenders, machine, vllm
from peers.report import as_json, as_text
from peers.workloads import WORKLOADS, picked
from services.modelfiles.errors import ModelError

INTERRUPTED = 130
"""What a shell says of a command that Ctrl-C ended."""


def main() -> int:
    asked = _parser().parse_args()
    cache = Path(os.environ.get("DIPTYCH_CACHE") or "~/.cache/diptych").expanduser()
    try:
        workloads = picked(asked.workloads)
        with tempfile.TemporaryDirectory(prefix="diptych-bench-") as directory:
            plan = Plan(workloads, asked.repetitions, asked.threads, Path(directory), _say)
            model = Model.of(asked.model, cache)
            specs = [*contenders(model, cache, asked.threads, workloads), *vllm(model, cache, asked.threads)]
            missing = {} if VLLM_PYTHON.is_file() else {"vLLM": "not installed (`make bench-vllm`)"}
            report = as_json(Contest(model, plan).findings([*specs, machine(model, asked.threads)], missing))
    except (ContenderFailed, ModelError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    print(json.dumps(report, indent=2) if asked.json else as_text(report))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    parser.add_argument("--repetitions", type=int, default=5, help="runs of every contender (default 5)")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="such as W2 or W1,W3 (default all)")
    parser.add_argument("--threads", type=int, default=2, help="compute threads of every contender (default 2)")
    parser.add_argument("--model", default="smollm2", help="smollm2, or the path of a GGUF file")
    return parser


def _say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
