"""The `diptych` command. Reads the arguments and the environment, calls one function, shows what comes of it."""

import json
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from services.cli import audit as audits
from services.cli import chat as chatting
from services.cli import demo as demonstration
from services.cli import memory as memories
from services.cli import model as models
from services.cli import quality as qualities
from services.cli import running
from services.cli import status as statuses
from services.cli import trace as traces
from services.cli import up as supervision
from services.cli import why as reasons
from services.cli.arena_room import arena_bytes, free_bytes
from services.cli.errors import CommandError
from services.cli.layout import ClusterLayout
from services.cli.plain_errors import plainly
from services.cli.record import load
from services.cli.scale_command import scale
from services.cli.scaling import parsed
from services.cli.simulate_command import simulate
from services.cli.terminal import Steps
from services.cli.waterfall import Waterfall
from services.core.engine_settings import KVDtype, WeightsMode

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Serves language models with prefill and decode in separate pools.",
)
model_app = typer.Typer(no_args_is_help=True, help="Fetch and list models.")
app.add_typer(model_app, name="model")

Model = Annotated[str, typer.Option(help="smollm2, hf:<repo>, a GGUF file or a Hugging Face directory.")]
Prefill = Annotated[int, typer.Option(help="Prefill workers; 0 lets decode workers prefill by themselves.")]
Decode = Annotated[int, typer.Option(help="Decode workers.")]
Kvstore = Annotated[int, typer.Option(help="KV stores.")]
Scheduler = Annotated[int, typer.Option(help="Schedulers, all at once.")]
Threads = Annotated[int, typer.Option(min=0, help="Compute threads of each worker; 0 shares the processors out.")]
Weights = Annotated[
    WeightsMode, typer.Option(help="Form of the weights: auto keeps quantized ones as in the file, others in int8.")
]
KvDtype = Annotated[KVDtype, typer.Option(help="Form of the KV cache.")]
Pin = Annotated[bool, typer.Option(help="Keep each compute thread to a processor of its own.")]
HttpPort = Annotated[int, typer.Option(min=0, max=65535, help="OpenAI API; 0 takes a free port.")]
GrpcPort = Annotated[int, typer.Option(min=0, max=65535, help="gRPC API; 0 takes a free port.")]
NatsPort = Annotated[int, typer.Option(min=0, max=65535, help="NATS; 0 takes a free port.")]
MOST_TOKENS = 2**31 - 1
MaxTokens = Annotated[int, typer.Option(min=1, max=MOST_TOKENS, help="Most tokens of an answer.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON value instead of text.")]


@app.command()
def up(
    model: Model = "smollm2",
    prefill: Prefill = 1,
    decode: Decode = 1,
    kvstore: Kvstore = 1,
    scheduler: Scheduler = 1,
    threads: Threads = 0,
    weights: Weights = "auto",
    kv_dtype: KvDtype = "float16",
    pin: Pin = True,
    http_port: HttpPort = 8000,
    grpc_port: GrpcPort = 50051,
    nats_port: NatsPort = 4222,
) -> None:
    """Start a cluster on this machine; Ctrl-C drains and stops it."""
    with plainly():
        layout = ClusterLayout(
            prefill=prefill,
            decode=decode,
            kvstore=kvstore,
            scheduler=scheduler,
            threads=threads,
            processors=_processors(pin),
            arena_bytes=arena_bytes(kvstore, free_bytes()),
            engine={"weights": weights, "kv_dtype": kv_dtype},
            http_port=http_port,
            grpc_port=grpc_port,
            nats_port=nats_port,
        )
        layout = replace(layout, model=_prepared(model))
        try:
            running.run(supervision.up(layout, _state(), os.environ, Console()))
        except KeyboardInterrupt:
            Console(stderr=True).print("stopped", style="dim")


@app.command()
def demo(
    prompt: Annotated[str, typer.Option(help="What to ask.")] = demonstration.PROMPT,
    max_tokens: MaxTokens = demonstration.MAX_TOKENS,
    model: Model = "smollm2",
    prefill: Prefill = 1,
    decode: Decode = 1,
    kvstore: Kvstore = 1,
    threads: Threads = 0,
    as_json: Json = False,
) -> None:
    """Start a cluster, stream one answer, show where its time went, stop."""
    with plainly():
        layout = ClusterLayout(
            prefill=prefill,
            decode=decode,
            kvstore=kvstore,
            threads=threads,
            processors=_processors(),
            arena_bytes=arena_bytes(kvstore, free_bytes()),
        )
        layout = replace(layout, model=_prepared(model))
        question = demonstration.Question(prompt, max_tokens)
        if as_json:
            typer.echo(json.dumps(running.run(demonstration.demo_json(layout, question, os.environ))))
        else:
            running.run(demonstration.demo(layout, question, os.environ, Console()))


@app.command()
def chat(
    max_tokens: Annotated[int | None, typer.Option(min=1, max=MOST_TOKENS, help="Most tokens of an answer.")] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.7,
    gateway: Annotated[str, typer.Option(help="host:port of a gateway; default: the running cluster's.")] = "",
) -> None:
    """Talk to the running cluster; /exit or Ctrl-D ends it."""
    with plainly():
        conversation = chatting.Conversation(max_tokens, temperature)
        chatting.chat(gateway or load(_state()).gateway_grpc, conversation, Console())


@app.command()
def status(
    memory: Annotated[bool, typer.Option("--memory", help="What their memory is used for.")] = False,
    as_json: Json = False,
) -> None:
    """Show the processes of the running cluster, their blocks and queues."""
    with plainly():
        found = running.run(statuses.reports(load(_state()), memory))
        if as_json:
            of_memory = [{"memory": memories.memory_json(report)} if memory else {} for report in found]
            rows = [row | more for row, more in zip(statuses.as_json(found), of_memory, strict=True)]
            typer.echo(json.dumps(rows, indent=1))
        else:
            Console().print(memories.memory_table(found) if memory else statuses.table(found))


@app.command()
def audit(
    watch: Annotated[bool, typer.Option("--watch", help="Go on looking, until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """Find what is held in the running cluster and should not be; exits 1 if there is anything."""

    def tell(finding: audits.Finding) -> None:
        if as_json:
            typer.echo(json.dumps(audits.as_json(finding), indent=None if watch else 1))
        else:
            audits.show(finding, Console())

    async def go_on() -> None:
        async for finding in audits.watched(load(_state())):
            tell(finding)

    with plainly():
        if watch:
            return running.run(go_on())
        finding = running.run(audits.audited(load(_state())))
        tell(finding)
        if finding.stranded:
            raise typer.Exit(1)


@app.command()
def trace(
    name: Annotated[str, typer.Argument(metavar="last|ID", help="A trace id, a request id, or the latest.")] = "last",
    wait: Annotated[float, typer.Option(min=0.0, max=60.0, help="Seconds to wait for it to be complete.")] = 2.0,
    why: Annotated[bool, typer.Option("--why", help="Show who was considered for it, and what decided.")] = False,
) -> None:
    """Show a recent request's waterfall."""
    with plainly():
        record = load(_state())
        trace = running.run(traces.fetched(record, name, wait))
        if why:
            places = running.run(reasons.decisions(record.gateway_grpc, reasons.request_id(trace)))
            Console().print(reasons.Why(places))
        else:
            Console().print(Waterfall(trace))


@model_app.command("pull")
def model_pull(name: Annotated[str, typer.Argument(help="smollm2 or hf:<repo>.")]) -> None:
    """Fetch a model into the cache and prepare it."""
    with plainly():
        if name not in models.PULLED and not name.startswith(models.HUB_PREFIX):
            raise CommandError(f"only {', '.join(models.PULLED)} and hf:<repo> can be pulled")
        typer.echo(_prepared(name))


@model_app.command("list")
def model_list() -> None:
    """List the prepared models in the cache."""
    with plainly():
        shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for heading in ("name", "context", "MB", "digest"):
            shown.add_column(heading)
        for model in models.listed(_cache() / "models"):
            shown.add_row(model.name, str(model.context), f"{model.size / 1e6:.0f}", model.digest[:12])
        Console().print(shown)


@model_app.command("check-quality")
def model_check_quality(
    prompts: Annotated[Path, typer.Option(help="One prompt a line; .jsonl: objects with text or messages, and kind.")],
    model: Annotated[str, typer.Argument(metavar="[MODEL]", help="As for `up`.")] = "smollm2",
    weights: Weights = "auto",
    kv_dtype: KvDtype = "float16",
    threads: Threads = 0,
    limit: Annotated[int, typer.Option(min=0, help="Prompts at most, evenly from the file; 0 takes all.")] = 0,
    as_json: Json = False,
) -> None:
    """Compare the engine as it would serve with float32; exits 1 if it is damaged or not close enough."""
    with plainly():
        choices = qualities.Choices(prompts, weights, kv_dtype, threads or len(_processors()), limit)
        directory = _prepared(model)
        with Steps(Console(stderr=True)) as steps:
            found = qualities.checked(directory, choices, steps.doing)
        if as_json:
            typer.echo(json.dumps(found, indent=1))
        else:
            qualities.show(found, Console())
        if found["failures"]:
            raise typer.Exit(1)


app.command()(simulate)


@app.command("scale")
def scale_cluster(
    sizes: Annotated[list[str], typer.Argument(metavar="SERVICE=N...", help="Of prefill, decode, kvstore, scheduler.")],
) -> None:
    """Start or drain processes of the running cluster, until each pool named has its size."""
    with plainly():
        wish = parsed(sizes)
        running.run(scale(load(_state()), wish, Console()))


def _prepared(model: str) -> Path:
    with Steps(Console(stderr=True)) as steps:
        steps.doing(f"looking for {model}")
        return models.prepared_model(model, _cache() / "models", steps.done)


def _processors(pin: bool = True) -> tuple[int, ...]:
    """What compute threads may keep to. Without pinning each worker has one thread unless told otherwise."""
    available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return tuple(available) if pin else ()


def _cache() -> Path:
    return Path(os.environ.get("DIPTYCH_CACHE") or "~/.cache/diptych").expanduser()


def _state() -> Path:
    return _cache() / "run"


def main() -> None:
    """The entry point `diptych`."""
    logging.basicConfig(level=logging.ERROR)
    app()


if __name__ == "__main__":
    main()
