"""Processes that the benchmark starts and talks to; each ends with its standard input."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parent.parent
TAIL_BYTES = 2000


class TransferFailed(Exception):
    """Something that was to be measured did not work."""


class End:
    """One process that answers each line of JSON with another."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._process = process
        self._log = log

    async def ask(self, **order: Any) -> dict[str, Any]:
        """Raises TransferFailed."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        return await self.answer()

    async def answer(self) -> dict[str, Any]:
        """Its next line. Raises TransferFailed."""
        assert self._process.stdout is not None
        line = await asyncio.to_thread(self._process.stdout.readline)
        if not line:
            raise TransferFailed(self._log.read_text(errors="replace")[-TAIL_BYTES:] or "a process has ended")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise TransferFailed(found["error"])
        return found


@asynccontextmanager
async def end(
    module: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> AsyncIterator[End]:
    """`python -m module arguments`, with its errors in `log`."""
    paths = f"{BENCHMARKS}:{BENCHMARKS.parent}"
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: ASYNC220  # starting is quick, and its pipes are read on threads
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            env={**os.environ, "PYTHONPATH": paths, **(environment or {})},
        )
    try:
        yield End(process, log)
    finally:
        process.communicate()
