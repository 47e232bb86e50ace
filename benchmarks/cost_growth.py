"""How the cost of a step grows: decode with batch and context, prefill with length, beside what the machine allows.

    .venv/bin/python benchmarks/cost_growth.py --threads 2 --plots docs/pictures --json

The limits are measured in the same run: read bandwidth, and the quicker rate of a large float32 product and of products
of 16-bit numbers.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from growth.limit import StepLimit
from growth.measure import blocks_needed, decode_seconds, prefill_seconds
from growth.plot import Axes, Line, svg
from peers.machine import Machine
from services.core.engine_settings import EngineSettings
from services.engine.load import load_engine
from services.modelfiles.prepared import PreparedModel

BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (128, 512, 2048, 8000)
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
CHUNK = 512
BLOCK_SIZE = 16


def main() -> None:
    asked = _parser().parse_args()
    machine = Machine()
    machine.load({"threads": asked.threads})
    measured = machine.extras()
    prepared = PreparedModel.open(asked.model)
    wanted = max(
        blocks_needed(batch, context, BLOCK_SIZE)
        for batch in BATCHES
        for context in CONTEXTS
        if batch * context <= asked.most_positions
    )
    settings = EngineSettings(wanted, asked.threads, BLOCK_SIZE, asked.kv_dtype, asked.weights)
    engine = load_engine(prepared, settings)
    limit = StepLimit(
        engine.config,
        engine.format,
        engine.runner.weights.step_bytes,
        measured["read_bytes_per_second"],
        max(measured["flops_per_second"], measured["whole_per_second"]),
    )
    found: dict[str, Any] = {"settings": vars(asked) | {"model": prepared.name}, "machine": measured}
    found["decode"] = [
        _row(batch, context, decode_seconds(engine.runner, batch, context, asked.repeats), limit.decode(batch, context))
        for context in CONTEXTS
        for batch in BATCHES
        if batch * context <= asked.most_positions
    ]
    found["prefill"] = [
        {
            "length": length,
            "seconds": prefill_seconds(engine.runner, length, CHUNK, asked.repeats),
            "limit": limit.prefill(length),
        }
        for length in LENGTHS
    ]
    if asked.plots:
        _draw(found, asked.plots)
    print(json.dumps(found, indent=1, default=str) if asked.json else _table(found))


def _row(batch: int, context: int, seconds: float, limit: float) -> dict[str, Any]:
    return {"batch": batch, "context": context, "seconds": seconds, "limit": limit}


def _draw(found: dict[str, Any], directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    lines = [
        Line(
            f"{context}",
            [(row["batch"], 1e3 * row["seconds"]) for row in found["decode"] if row["context"] == context],
            [(row["batch"], 1e3 * row["limit"]) for row in found["decode"] if row["context"] == context],
        )
        for context in CONTEXTS
    ]
    axes = Axes("Decode step by batch, one line a context (dashed: the limit)", "requests in the batch", "ms a step")
    (directory / "decode_growth.svg").write_text(svg(axes, lines))
    prefill = Line(
        "prefill",
        [(row["length"], 1e3 * row["seconds"]) for row in found["prefill"]],
        [(row["length"], 1e3 * row["limit"]) for row in found["prefill"]],
    )
    axes = Axes("Prefill by length (dashed: the limit)", "tokens of the prompt", "ms")
    (directory / "prefill_growth.svg").write_text(svg(axes, [prefill]))


def _table(found: dict[str, Any]) -> str:
    lines = ["| batch | " + " | ".join(f"context {context}" for context in CONTEXTS) + " |", "|--:" * 5 + "|"]
    for batch in BATCHES:
        cells = []
        for context in CONTEXTS:
            row = next((r for r in found["decode"] if (r["batch"], r["context"]) == (batch, context)), None)
            cells.append(f"{1e3 * row['seconds']:.1f} ({row['limit'] / row['seconds']:.0%})" if row else "")
        lines.append(f"| {batch} | " + " | ".join(cells) + " |")
    lines += ["", "| tokens | ms | tokens/s | share of the limit |", "|--:|--:|--:|--:|"]
    lines += [
        f"| {row['length']} | {1e3 * row['seconds']:.0f} | {row['length'] / row['seconds']:.0f}"
        f" | {row['limit'] / row['seconds']:.0%} |"
        for row in found["prefill"]
    ]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="How the cost of a step grows.")
    parser.add_argument("--model", type=Path, required=True, help="a prepared model directory")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--kv-dtype", default="float16")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--most-positions", type=int, default=131_072, help="KV that there is memory for")
    parser.add_argument("--plots", type=Path, help="where to write the pictures")
    parser.add_argument("--json", action="store_true")
    return parser


if __name__ == "__main__":
    main()
