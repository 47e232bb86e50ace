"""`python -m services.engine.quality`: JSON lines on standard output, each with an `event`.

    progress   doing, done, of
    report     the report (see `report`)
    error      message, for people; nothing follows

Exits 0 if the engine passes, 1 if not or if it could not be checked. Logs go to standard error.
"""

import argparse
import json
import logging
import sys
from pathlib import Path
from typing import get_args

from services.core.engine_settings import EngineSettings, KVDtype, WeightsMode
from services.engine.quality.check import Question, check
from services.engine.quality.prompts import PromptError
from services.modelfiles.errors import ModelError

BLOCKS = 64
"""Of the cache: a prompt is cut to what they hold."""
INTERRUPTED = 130


def main() -> int:
    asked = _parser().parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    settings = EngineSettings(BLOCKS, threads=asked.threads, kv_dtype=asked.kv_dtype, weights=asked.weights)
    try:
        found = check(Question(asked.model, asked.prompts, settings, asked.limit), _progress)
    except (ModelError, PromptError) as error:
        _say({"event": "error", "message": str(error)})
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    _say({"event": "report", "report": found})
    return 1 if found["failures"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Compares an engine with float32 on a prompt file.")
    parser.add_argument("model", type=Path, help="a prepared model directory")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--weights", choices=get_args(WeightsMode), default="auto")
    parser.add_argument("--kv-dtype", choices=get_args(KVDtype), default="float16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--limit", type=int, default=0)
    return parser


def _progress(doing: str, done: int, of: int) -> None:
    _say({"event": "progress", "doing": doing, "done": done, "of": of})


def _say(event: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
