"""Waterfall and ledger on terminals of any width."""

from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from services.cli.waterfall import Waterfall, bar, ledger_table, parent_names, rows
from services.core.ledger import Segment
from services.pb import traces_pb2

Span = traces_pb2.Span

SPANS = [
    Span(name="kv.get", service="decode", span_id="4", parent_id="3", start_seconds=0.30, seconds=0.05),
    Span(name="gateway.request", service="gateway", span_id="1", parent_id="outside", start_seconds=0, seconds=1.0),
    Span(name="decode.admit", service="decode", span_id="3", parent_id="2", start_seconds=0.25, seconds=0.2),
    Span(name="scheduler.place", service="scheduler", span_id="2", parent_id="1", start_seconds=0.02, seconds=0.9),
    Span(name="gateway.tokenize", service="gateway", span_id="5", parent_id="1", start_seconds=0.0, seconds=0.01),
]


def shown(renderable: RenderableType, width: int = 80, encoding: str = "utf-8") -> str:
    class Piped(StringIO):
        @property
        def encoding(self) -> str:  # type: ignore[override]
            return encoding

    console = Console(file=Piped(), width=width, force_terminal=False)
    console.print(renderable)
    file = console.file
    assert isinstance(file, StringIO)
    return file.getvalue()


def test_spans_stand_below_their_parents_by_start() -> None:
    assert [(row.span.name, row.depth) for row in rows(SPANS)] == [
        ("gateway.request", 0),
        ("gateway.tokenize", 1),
        ("scheduler.place", 1),
        ("decode.admit", 2),
        ("kv.get", 3),
    ]
    assert parent_names(SPANS) == {
        "1": None,
        "2": "gateway.request",
        "3": "scheduler.place",
        "4": "decode.admit",
        "5": "gateway.request",
    }


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 9)), max_size=9, unique_by=lambda pair: pair[0]))
def test_every_span_is_shown_once_even_when_parents_run_in_a_circle(pairs: list[tuple[int, int]]) -> None:
    spans = [Span(name=f"s{own}", span_id=str(own), parent_id=str(parent)) for own, parent in pairs]
    assert sorted(row.span.span_id for row in rows(spans)) == sorted(span.span_id for span in spans)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_waterfall_has_one_line_per_span_and_never_exceeds_the_width(width: int) -> None:
    lines = shown(Waterfall(traces_pb2.Trace(trace_id="ab" * 16, spans=SPANS, is_complete=True)), width).splitlines()
    assert len(lines) == 1 + len(SPANS)
    assert all(len(line) <= width for line in lines)
    assert "1000.0 ms" in lines[1] and "50.0 ms" in lines[5]


def test_where_only_ascii_can_be_shown_only_ascii_is_shown() -> None:
    trace = traces_pb2.Trace(trace_id="ab" * 16, spans=SPANS)
    text = shown(Waterfall(trace), encoding="ascii")
    assert text.isascii()
    assert "incomplete" in text


def test_square_brackets_in_a_name_are_no_markup() -> None:
    trace = traces_pb2.Trace(spans=[Span(name="[red]x[/]", service="[bold]", span_id="1")], is_complete=True)
    assert "[red]x[/]" in shown(Waterfall(trace))
    assert "[red]" in shown(ledger_table([Segment("[red]", 1.0)], 0.0, 1.0))


@given(st.floats(0, 10), st.floats(0, 10), st.integers(1, 60))
def test_a_bar_stays_on_its_axis_and_can_be_seen(start: float, seconds: float, cells: int) -> None:
    drawn = bar(start, seconds, max(start + seconds, 0.001), cells)
    assert 1 <= len(drawn) <= cells
    assert drawn.strip()


def test_a_ledger_shows_shares_the_remainder_and_the_total() -> None:
    text = shown(ledger_table([Segment("prefill.compute", 0.3), Segment("decode.run", 0.6)], 0.1, 1.0))
    lines = [line.split() for line in text.splitlines()]
    assert lines[1:] == [
        ["prefill.compute", "300.0", "ms", "30.0%"],
        ["decode.run", "600.0", "ms", "60.0%"],
        ["remainder", "100.0", "ms", "10.0%"],
        ["total", "1000.0", "ms", "100.0%"],
    ]
