"""Recorded requests: when they came, how long they were, and which blocks of their prompts they share.

Two public forms are read, plain or gzipped: Mooncake's JSON lines (Apache-2.0; `timestamp` in ms, `hash_ids` name
prefixes in blocks of 512 tokens) and Azure's CSV (CC-BY-4.0; no prefixes, so no two prompts share anything).
"""

import csv
import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TextIO

TRACE_BLOCK = 512
"""Tokens of a block that a hash id names."""


class TraceError(Exception):
    """The file is no trace; the message is for people."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One recorded request."""

    at: float
    """Seconds since the trace began."""
    prompt: int
    """Tokens, at least 1."""
    answer: int
    """Tokens, at least 1."""
    blocks: tuple[int, ...] = ()
    """Names of the prompt's full blocks of `TRACE_BLOCK` tokens; equal names stand for equal prompts up to there."""


Trace = Sequence[TraceRequest]


def read(path: Path, limit: int = 0) -> list[TraceRequest]:
    """In order of arrival; the first `limit` of them, or all. Raises TraceError."""
    try:
        with _opened(path) as file:
            rows = list(_mooncake(file) if ".jsonl" in path.suffixes else _azure(file))
    except OSError as error:
        raise TraceError(f"cannot read the trace: {error.strerror or 'not a gzip file'}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TraceError("not a trace of a known form: JSON lines of Mooncake, or CSV of Azure") from error
    if not rows:
        raise TraceError("the trace has no requests")
    rows.sort(key=lambda row: row.at)
    first = rows[0].at
    return [replace(row, at=row.at - first) for row in rows[: limit or None]]


def at_rate(trace: Trace, per_second: float) -> list[TraceRequest]:
    """The same requests at another mean rate: time is stretched, the pattern of arrivals stays."""
    factor = len(trace) / per_second / span(trace)
    return [replace(row, at=row.at * factor) for row in trace]


def span(trace: Trace) -> float:
    """Seconds that the trace lasts, the mean gap after its last arrival included."""
    return max(trace[-1].at, 1e-3) * len(trace) / max(len(trace) - 1, 1)


def _opened(path: Path) -> TextIO:
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def _mooncake(file: TextIO) -> Iterator[TraceRequest]:
    for line in file:
        row = json.loads(line)
        prompt = max(int(row["input_length"]), 1)
        blocks = tuple(int(name) for name in row["hash_ids"][: prompt // TRACE_BLOCK])
        yield TraceRequest(row["timestamp"] / 1000.0, prompt, max(int(row["output_length"]), 1), blocks)


def _azure(file: TextIO) -> Iterator[TraceRequest]:
    for row in csv.DictReader(file):
        at = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
        yield TraceRequest(at, max(int(row["ContextTokens"]), 1), max(int(row["GeneratedTokens"]), 1))
