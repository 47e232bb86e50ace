"""How fast KV blocks move, near and far, and what a hand-over adds between an answer's first and second token.

    .venv/bin/python benchmarks/transfer.py --json

Blocks go from one process into a kvstore's and from there into another, checksums on, by turns with plain copies, a
plain TCP stream, and a gRPC stream whose reader drops what it gets. As JSON; of several the worst counts:

    shm_over_memcpy                two plain copies ÷ a put and a get in shared memory
    grpc_over_tcp                  a plain TCP stream ÷ a get over gRPC; `grpc_bare_over_tcp` the stream that drops
    handover_gap_over_last_chunk   with a link on which the whole transfer takes 0.8 of the prefill: what the hand-over
                                   adds ÷ the transfer of the blocks that the last chunk sealed
    handover_gap_over_ttft         without a throttle: what it adds ÷ time to the first token
    blocks, gaps                   everything that was measured, by shape, and by length of the prompt

What a hand-over adds is seen by the client: from the first token to the second, less a step of the same answer.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

import uvloop

from handover.ends import TransferFailed
from handover.gap import Place, cluster, prompt_bytes
from handover.moving import Measured, measured
from handover.report import GapRun, as_json, as_text
from handover.shapes import SHAPES, Shape
from peers.child import ContenderFailed
from peers.field import Model
from services.cli.errors import CommandError
from services.modelfiles.errors import ModelError
from services.runtime.memory_reuse import reuse_large_memory

SHARE_OF_PREFILL = 0.8
"""That the whole transfer takes on the throttled link."""


def main() -> int:
    asked = _parser().parse_args()
    reuse_large_memory()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="diptych-bench-") as directory,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            moved, runs = runner.run(_found(asked, Path(directory)))
    except (ContenderFailed, CommandError, ModelError, TransferFailed, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    report = as_json(moved, runs)
    print(json.dumps(report, indent=2) if asked.json else as_text(report))
    return 0


async def _found(asked: argparse.Namespace, logs: Path) -> tuple[dict[Shape, Measured], list[GapRun]]:
    moved = {}
    for shape in SHAPES if "blocks" in asked.parts else ():
        _say(f"blocks of {shape.name}")
        moved[shape] = await measured(shape, asked.rounds, logs)
    runs: list[GapRun] = []
    if "gaps" in asked.parts:
        model = _model(asked.model)
        for way in asked.ways.split(","):
            for tokens in map(int, asked.lengths.split(",")):
                runs += await _gaps(asked, model, logs, way, tokens)
    return moved, runs


async def _gaps(asked: argparse.Namespace, model: Path, logs: Path, way: Place, tokens: int) -> list[GapRun]:
    """Without a throttle, then with one that follows from the prefill's time."""
    runs: list[GapRun] = []
    rate = 0.0
    for name in ("free", "throttled"):
        async with cluster(model, _directory(logs, f"{way}-{tokens}-{name}"), way, rate) as running:
            gaps = []
            for number in range(asked.repetitions):
                _say(f"{tokens} tokens, {way}, {name}: {number + 1}")
                gaps.append(await running.gap(tokens))
        runs.append(GapRun(tokens, way, rate, gaps))
        prefill = sorted(gap.prefill for gap in gaps)[len(gaps) // 2]
        rate = prompt_bytes(model, tokens) / (SHARE_OF_PREFILL * prefill)
    return runs


def _model(name: str) -> Path:
    """Its prepared directory."""
    cache = Path(os.environ.get("DIPTYCH_CACHE") or "~/.cache/diptych").expanduser()
    return Model.of(name, cache).prepared.directory


def _directory(logs: Path, name: str) -> Path:
    (logs / name).mkdir()
    return logs / name


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    parser.add_argument("--parts", default="blocks,gaps", help="blocks, gaps, or both (the default)")
    parser.add_argument("--rounds", type=int, default=11, help="transfers of every kind (default 11)")
    parser.add_argument("--repetitions", type=int, default=5, help="requests of every kind (default 5)")
    parser.add_argument("--lengths", default="1024,4096", help="tokens of the prompts (default 1024,4096)")
    parser.add_argument("--ways", default="near", help="near, far, or both, for the gaps (default near)")
    parser.add_argument("--model", default="smollm2", help="smollm2, or the path of a GGUF file")
    return parser


def _say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
