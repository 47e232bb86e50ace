"""What a client of a server gets: ours split and unsplit, and llama.cpp's server, on the same model, in one run.

    .venv/bin/python benchmarks/serving.py --json

Requests go through HTTP to OpenAI-compatible servers, which take turns. As JSON:

    medians             server -> workload -> measure; `engine only` is our engine without a server, on as many threads
    ratios              W1_tokens_per_second, W1_ttft, W2_...: llama.cpp's server -> our unsplit one ÷ it
    serving_share       workload -> output of the unsplit server ÷ that of the engine alone
    split_over_unsplit  workload -> what splitting gives (above 1) or costs (below) on this machine
    arrival             server -> gaps of running streams by themselves and while a prompt of 1 500 tokens arrives
    settings

The split cluster has one prefill and one decode worker with one thread and one core each. Servers of peers are
installed by `make bench-peers`.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

from peers.child import ContenderFailed
from peers.field import Model, ours
from peers.openai_client import ServerRefused
from peers.serving_contest import ServingContest, ServingPlan
from peers.serving_report import served_json, served_text
from peers.workloads import picked
from services.cli.errors import CommandError
from services.modelfiles.errors import ModelError

INTERRUPTED = 130
"""What a shell says of a command that Ctrl-C ended."""


def main() -> int:
    asked = _parser().parse_args()
    cache = Path(os.environ.get("DIPTYCH_CACHE") or "~/.cache/diptych").expanduser()
    try:
        with tempfile.TemporaryDirectory(prefix="diptych-bench-") as directory:
            plan = ServingPlan(
                workloads=picked(asked.workloads),
                repetitions=asked.repetitions,
                threads=asked.threads,
                forms=[form for form in asked.llama_forms.split(",") if form],
                cache=cache,
                directory=Path(directory),
                say=_say,
            )
            model = Model.of(asked.model, cache)
            report = served_json(asyncio.run(ServingContest(model, plan).served(ours(model, asked.threads))))
    except (ContenderFailed, CommandError, ModelError, ServerRefused, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    print(json.dumps(report, indent=2) if asked.json else served_text(report))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    parser.add_argument("--repetitions", type=int, default=3, help="runs of every server (default 3)")
    parser.add_argument("--workloads", default="W1,W2", help="such as W2 (default W1,W2)")
    parser.add_argument("--threads", type=int, default=2, help="compute threads of a server in all (default 2)")
    parser.add_argument(
        "--llama-forms",
        default="F16,Q4_1",
        help="forms of the file for llama.cpp's server, or nothing (default F16,Q4_1)",
    )
    parser.add_argument("--model", default="smollm2", help="smollm2, or the path of a GGUF file")
    return parser


def _say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
