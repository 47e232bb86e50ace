"""Parents are explicit, garbage begins a new trace, and every span ends once."""

import asyncio

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services.runtime.telemetry import Telemetry, parsed, trace_id, traceparent
from services.runtime.timeline import Timeline

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def telemetry() -> tuple[Telemetry, InMemorySpanExporter]:
    spans = InMemorySpanExporter()
    made = Telemetry({"service.name": "test"}, [])
    made.add_processor(SimpleSpanProcessor(spans))
    return made, spans


def test_a_traceparent_is_adopted_and_passed_on() -> None:
    made, spans = telemetry()
    with made.phase("outer", PARENT) as outer:
        assert trace_id(outer) == "0af7651916cd43dd8448eb211c80319c"
        with made.phase("inner", traceparent(outer)):
            pass
    inner, outer_done = spans.get_finished_spans()
    assert outer_done.parent is not None and f"{outer_done.parent.span_id:016x}" == "b7ad6b7169203331"
    assert inner.parent is not None and inner.parent.span_id == outer_done.context.span_id


@pytest.mark.parametrize(
    "garbage",
    [
        "",
        "x",
        PARENT[:-1],
        "ff" + PARENT[2:],
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        PARENT.replace("b7ad", "zzzz"),
    ],
)
def test_a_malformed_parent_begins_a_new_trace(garbage: str) -> None:
    made, spans = telemetry()
    assert parsed(garbage) is None
    with made.phase("root", garbage):
        pass
    assert spans.get_finished_spans()[0].parent is None


def test_a_parent_that_is_not_sampled_is_respected() -> None:
    made, spans = telemetry()
    with made.phase("quiet", PARENT[:-2] + "00") as span:
        assert traceparent(span).endswith("-00")
    assert spans.get_finished_spans() == ()
    assert made.open_spans() == []


async def test_a_cancelled_phase_ends_its_span_and_says_so() -> None:
    made, spans = telemetry()
    begun = asyncio.Event()

    async def work() -> None:
        with made.phase("work"):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await begun.wait()
    assert [name for name, _ in made.open_spans()] == ["work"]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    [span] = spans.get_finished_spans()
    assert span.attributes is not None and span.attributes["error.type"] == "CancelledError"
    assert made.open_spans() == []


def test_ending_twice_ends_once() -> None:
    made, spans = telemetry()
    span = made.start("once")
    made.end(span)
    made.end(span, RuntimeError())
    assert len(spans.get_finished_spans()) == 1


def test_a_timeline_tells_the_same_story_in_spans_and_segments() -> None:
    made, spans = telemetry()
    timeline = Timeline(made, PARENT, 10.0)
    timeline.enter("queue", 10.0)
    timeline.enter("compute", 11.0)
    timeline.enter_unspanned("kv.get", 13.0)
    timeline.close(14.0)
    timeline.close(15.0)
    assert [(s.name, s.seconds) for s in timeline.take()] == [("queue", 1.0), ("compute", 2.0), ("kv.get", 1.0)]
    assert [span.name for span in spans.get_finished_spans()] == ["queue", "compute"]
    assert made.open_spans() == []
