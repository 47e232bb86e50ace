"""A trace as a waterfall and a ledger as a table, for terminals of any width and for pipes. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from services.core.ledger import Segment
from services.pb import traces_pb2

COLOURS = {"gateway": "cyan", "scheduler": "yellow", "prefill": "magenta", "decode": "green", "kvstore": "blue"}
MIN_BAR_CELLS = 12
MAX_BAR_CELLS = 60
MAX_NAME_CELLS = 32


@dataclass(frozen=True, slots=True)
class Row:
    """A span at its place in the tree."""

    span: traces_pb2.Span
    depth: int


def rows(spans: Iterable[traces_pb2.Span]) -> list[Row]:
    """Every span once, depth first, siblings by start. A span whose parent is not there stands at the top."""
    ordered = sorted(spans, key=lambda span: (span.start_seconds, -span.seconds))
    known = {span.span_id for span in ordered}
    children: dict[str, list[traces_pb2.Span]] = {}
    for span in ordered:
        children.setdefault(span.parent_id if span.parent_id in known else "", []).append(span)
    placed: dict[str, Row] = {}
    # Spans that are each other's ancestors hang on no top; taking each as a start shows them all the same.
    for start in [*children.get("", ()), *ordered]:
        stack = [Row(start, 0)]
        while stack:
            row = stack.pop()
            if row.span.span_id in placed:
                continue
            placed[row.span.span_id] = row
            below = children.get(row.span.span_id, ())
            stack.extend(Row(span, row.depth + 1) for span in reversed(below))
    return list(placed.values())


def parent_names(spans: Sequence[traces_pb2.Span]) -> dict[str, str | None]:
    """The name of every span's parent by span id; None where the parent is not in the trace."""
    names = {span.span_id: span.name for span in spans}
    return {span.span_id: names.get(span.parent_id) for span in spans}


class Waterfall:
    """A rich renderable: one line per span with a bar on the trace's time axis."""

    def __init__(self, trace: traces_pb2.Trace) -> None:
        self._trace = trace

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = rows(self._trace.spans)
        total = max((row.span.start_seconds + row.span.seconds for row in lines), default=0.0)
        names = [_fit("  " * row.depth + row.span.name, MAX_NAME_CELLS) for row in lines]
        services = [row.span.service for row in lines]
        used = max(map(len, names), default=4) + max(map(len, services), default=7) + len("1000000.0 ms") + 6
        cells = max(MIN_BAR_CELLS, min(MAX_BAR_CELLS, options.max_width - used))
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True, overflow="ellipsis")
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True, width=cells)
        grid.add_column(no_wrap=True, justify="right")
        for row, name in zip(lines, names, strict=True):
            colour = "red" if row.span.is_error else COLOURS.get(row.span.service, "white")
            share = bar(row.span.start_seconds, row.span.seconds, total, cells, is_ascii=options.ascii_only)
            grid.add_row(
                Text(name, style="red" if row.span.is_error else ""),
                Text(_fit(row.span.service, MAX_NAME_CELLS), style=colour),
                Text(share, style=colour),
                Text(milliseconds(row.span.seconds)),
            )
        yield Text(f"trace {self._trace.trace_id}, {len(lines)} spans", style="bold")
        yield grid
        if not self._trace.is_complete:
            yield Text("incomplete: spans are missing, or may yet come", style="yellow")


def ledger_table(segments: Sequence[Segment], remainder: float, total: float) -> Table:
    """Segments in order with their share of `total` seconds, what nobody accounts for, and the total."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("segment", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    for segment in (*segments, Segment("remainder", remainder)):
        table.add_row(Text(segment.name), milliseconds(segment.seconds), percent(segment.seconds, total))
    table.add_row("total", milliseconds(total), percent(total, total), style="bold")
    return table


def bar(start: float, seconds: float, total: float, cells: int, *, is_ascii: bool = False) -> str:
    """A bar of `cells` characters' axis; at least one character, however short the span."""
    if total <= 0:
        return ""
    first = min(int(start / total * cells), cells - 1)
    last = max(first + 1, min(round((start + seconds) / total * cells), cells))
    thin = seconds / total * cells < 0.5
    mark = ("|" if is_ascii else "▏") if thin else ("=" if is_ascii else "█")
    return " " * first + mark * (last - first)


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def percent(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole > 0 else "-"


def _fit(text: str, cells: int) -> str:
    return text if len(text) <= cells else text[: cells - 1] + "…"
