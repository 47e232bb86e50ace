"""The table of candidates, and which request a trace is of."""

import pytest
from rich.console import Console

from services.cli.errors import CommandError
from services.cli.why import Why, request_id
from services.pb import inference_pb2, traces_pb2

Segment = inference_pb2.Segment


def candidate(role: str, worker: str, *terms: tuple[str, float]) -> inference_pb2.Candidate:
    return inference_pb2.Candidate(
        role=role,
        worker=worker,
        cost_seconds=sum(seconds for _, seconds in terms),
        terms=[Segment(name=name, seconds=seconds) for name, seconds in terms],
        cached_blocks=3,
    )


def shown(*places: inference_pb2.Decision) -> str:
    console = Console(width=120, force_terminal=False)
    with console.capture() as captured:
        console.print(Why(places))
    return captured.get()


def test_every_candidate_has_a_row_with_its_terms_and_its_cost() -> None:
    candidates = [
        candidate("prefill", "prefill-1", ("wait", 0.25), ("compute", 0.5)),
        candidate("decode", "decode-0", ("itl", 0.75)),
    ]
    text = shown(inference_pb2.Decision(why="because", policy="ours", candidates=candidates, others=7))
    assert "place 1: because" in text
    [row] = [line.split() for line in text.splitlines() if line.startswith("prefill-1")]
    assert row == ["prefill-1", "250.0", "ms", "500.0", "ms", "750.0", "ms", "3"]
    assert "and 7 that would have cost more" in text


def test_a_place_without_a_record_is_still_named() -> None:
    assert "place 2: the scheduler was lost" in shown(
        inference_pb2.Decision(), inference_pb2.Decision(why="the scheduler was lost")
    )


def test_the_request_is_found_in_its_gateways_span() -> None:
    span = traces_pb2.Span(name="gateway.request", attributes={"diptych.request_id": "r1"})
    assert request_id(traces_pb2.Trace(spans=[traces_pb2.Span(name="other"), span])) == "r1"
    with pytest.raises(CommandError):
        request_id(traces_pb2.Trace(spans=[traces_pb2.Span(name="other")]))
