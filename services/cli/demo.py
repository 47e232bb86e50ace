"""`diptych demo`: one chat answer from a cluster of its own, with its waterfall and its ledger."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from services.cli.client import Answer, Gateway, chat_request, message
from services.cli.cluster import LocalCluster
from services.cli.errors import CommandError
from services.cli.layout import ClusterLayout
from services.cli.terminal import Steps, show_text
from services.cli.waterfall import Waterfall, ledger_table, parent_names
from services.pb import inference_pb2, traces_pb2

PROMPT = "What is the capital of France, and what is it known for? Answer in two sentences."
MAX_TOKENS = 96
ANSWER_SECONDS = 300.0
TRACE_SECONDS = 15.0

JsonValue = str | int | float | None | list["JsonValue"] | dict[str, "JsonValue"]


@dataclass(frozen=True, slots=True)
class Question:
    """What the demo asks; the answer is greedy, so the same every time."""

    prompt: str = PROMPT
    max_tokens: int = MAX_TOKENS


async def demo(layout: ClusterLayout, question: Question, environment: Mapping[str, str], console: Console) -> None:
    """Streams the answer to `console`, then shows where its time went."""
    with Steps(Console(stderr=True)) as steps:

        def show(text: str) -> None:
            steps.pause()
            show_text(console, text)

        answer, trace = await _answered(layout, question, environment, steps, show)
        steps.pause()
        console.print("\n")
        console.print(Waterfall(trace))
        console.print()
        console.print(ledger_table(answer.ledger, answer.done.remainder_seconds, answer.done.total_seconds))


async def demo_json(layout: ClusterLayout, question: Question, environment: Mapping[str, str]) -> dict[str, JsonValue]:
    """The same as one JSON object. Raises CommandError if the trace does not become complete."""
    with Steps(Console(stderr=True)) as steps:
        answer, trace = await _answered(layout, question, environment, steps, lambda _: None)
    if not trace.is_complete:
        raise CommandError(f"the trace is not complete after {TRACE_SECONDS:g} s")
    return as_json(answer, trace)


def as_json(answer: Answer, trace: traces_pb2.Trace) -> dict[str, JsonValue]:
    """`spans` name their parent span, or null where the parent is not in the trace; all times are seconds."""
    usage = answer.done.usage
    reason = inference_pb2.FinishReason.Name(answer.done.finish_reason)
    parents = parent_names(trace.spans)
    return {
        "text": answer.text,
        "finish_reason": reason.removeprefix("FINISH_REASON_").lower(),
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
        },
        "ledger": [{"segment": segment.name, "seconds": segment.seconds} for segment in answer.ledger],
        "remainder_seconds": answer.done.remainder_seconds,
        "e2e_seconds": answer.seconds,
        "trace_id": answer.done.trace_id,
        "spans": [
            {"name": span.name, "service": span.service, "parent": parents[span.span_id], "seconds": span.seconds}
            for span in trace.spans
        ],
    }


async def _answered(
    layout: ClusterLayout,
    question: Question,
    environment: Mapping[str, str],
    steps: Steps,
    show: Callable[[str], None],
) -> tuple[Answer, traces_pb2.Trace]:
    """Starts a cluster in a directory of its own, asks, waits for the trace, stops the cluster.

    The demonstration is of the split, so the request is split whatever that would cost.
    """
    scheduler = {"split": "always", **layout.fields.get("scheduler", {})}
    layout = replace(layout, fields={**layout.fields, "scheduler": scheduler})
    with tempfile.TemporaryDirectory(prefix="diptych-") as directory:
        async with LocalCluster(layout, Path(directory), environment, steps.member) as cluster:
            async with Gateway(cluster.gateway.address) as gateway:
                await gateway.warm_up()
                request = chat_request([message("user", question.prompt)], question.max_tokens, temperature=0.0)
                answer = await gateway.ask(request, show, timeout=ANSWER_SECONDS)
            return answer, await cluster.collector.trace(answer.done.trace_id, TRACE_SECONDS)
