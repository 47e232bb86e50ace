"""`diptych trace --why`: why a request ran where it ran, as its gateway remembers it."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from services.cli.errors import CommandError
from services.cli.trace_store import REQUEST_ID
from services.cli.waterfall import milliseconds
from services.pb import inference_pb2, inference_pb2_grpc, traces_pb2
from services.runtime import dial
from services.runtime.edge import remote_errors

ROLES = ("prefill", "decode", "local")
ROOT = "gateway.request"
ANSWER_SECONDS = 5.0


def request_id(trace: traces_pb2.Trace) -> str:
    """Of the request that the trace is of. Raises CommandError if no gateway's span is in it."""
    for span in trace.spans:
        if span.name == ROOT and (found := span.attributes.get(REQUEST_ID)):
            return found
    raise CommandError("the trace has no span of a gateway, so nobody can be asked why")


async def decisions(gateway: str, request: str) -> list[inference_pb2.Decision]:
    """All places the request was given. Raises NotFound if the gateway remembers it no more."""
    async with dial.channel(gateway) as channel:
        with remote_errors():
            record = await inference_pb2_grpc.InferenceStub(channel).GetRequest(
                inference_pb2.GetRequestRequest(request_id=request), timeout=ANSWER_SECONDS
            )
    return list(record.decisions)


class Why:
    """A rich renderable: for each place its candidates with what each would have cost, term by term."""

    def __init__(self, places: Iterable[inference_pb2.Decision]) -> None:
        self._places = list(places)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for number, place in enumerate(self._places):
            yield Text(f"place {number + 1}: {place.why or 'no scheduler placed it'}", style="bold")
            if not place.candidates:
                continue
            first, later = milliseconds(place.ttft_seconds), milliseconds(place.itl_seconds)
            expected = f"the first token in {first}, then one every {later}; {place.uncached_tokens} tokens to compute"
            yield Text(f"policy {place.policy} expected {expected}")
            for role in ROLES:
                if shown := [each for each in place.candidates if each.role == role]:
                    yield _table(role, shown)
            if place.others:
                yield Text(f"and {place.others} that would have cost more", style="dim")


def _table(role: str, candidates: list[inference_pb2.Candidate]) -> Table:
    """One role's candidates, the cheapest first."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(role, no_wrap=True)
    for term in candidates[0].terms:
        table.add_column(term.name, justify="right", no_wrap=True)
    table.add_column("cost", justify="right", no_wrap=True)
    table.add_column("cached", justify="right", no_wrap=True)
    for each in candidates:
        terms = (milliseconds(term.seconds) for term in each.terms)
        table.add_row(Text(each.worker), *terms, milliseconds(each.cost_seconds), str(each.cached_blocks))
    return table
