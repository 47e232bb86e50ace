"""Scheduler, workers and kvstore, each wired by its own `main`, in one event loop over real gRPC and without a bus.

The engine is scripted: its next token is computed from the bytes of the request's blocks, so that a block that is lost,
stale or mixed up on its way changes the answer.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from services.core.batch_limits import BatchLimits
from services.core.block_facts import BlockSource
from services.core.errors import DiptychError
from services.core.ids import RequestId, RequestKey
from services.core.ledger import Segment
from services.core.plan import TokenLogprobs
from services.core.request import FinishReason, Request, Sampling, Stopping
from services.core.step_cost import StepCost
from services.decode.fetching import Fetching
from services.decode.settings import Settings as DecodeSettings
from services.kvstore.__main__ import main as kvstore
from services.kvstore.settings import Settings as KVStoreSettings
from services.pb import operations_pb2, operations_pb2_grpc, session_pb2, session_pb2_grpc
from services.prefill.publishing import Publishing
from services.prefill.settings import Settings as PrefillSettings
from services.runtime import codec, dial
from services.runtime.process import Process
from services.runtime.session import PROTOCOL, Session, Terms
from services.runtime.session_pool import SessionPool
from services.runtime.worker import WorkerEngine, serve_worker
from services.scheduler.__main__ import main as scheduler
from services.scheduler.settings import Settings as SchedulerSettings
from tests.support.ports import free_port
from tests.support.processes import process_of
from tests.support.scripted_runner import ScriptedRunner

VOCAB = 1000
NO_FAULTS: Mapping[str, dict[str, float]] = {}
NOTHING_MORE: Mapping[str, object] = {}
LIMITS = BatchLimits(
    block_size=16,
    num_blocks=64,
    max_running=8,
    max_waiting=16,
    max_context=1000,
    step_seconds=0.1,
    cost=StepCost(0.0, 0.001, 0.0),
    watermark_blocks=1,
    vocab=VOCAB,
)


@dataclass(eq=False)
class Answer:
    """What the caller of the scheduler has been told about one request."""

    key: RequestKey
    first: int = 0
    """Index of the first token that is to come."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    reason: FinishReason | None = None
    error: DiptychError | None = None
    finished: session_pb2.Finished = field(default_factory=session_pb2.Finished)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_over(self) -> bool:
        return self.reason is not None or self.error is not None

    async def until(self, tokens: int) -> None:
        """Returns once so many tokens are there, or it is over."""
        async with asyncio.timeout(20):
            while len(self.ids) < tokens and not self.is_over:
                self.changed.clear()
                await self.changed.wait()

    async def end(self) -> "Answer":
        await self.until(1 << 30)
        return self


class Caller:
    """Stands for a gateway: one session with the scheduler."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()
        self._session: Session[session_pb2.Down] | None = None
        self._answers: dict[RequestKey, Answer] = {}
        self._count = 0

    def start(self, prompt: Iterable[int], max_tokens: int, **changes: object) -> Answer:
        self._count += 1
        key = RequestKey(RequestId(f"r{self._count}"), 0)
        stopping = Stopping(max_tokens, stop_ids=changes.pop("stop_ids", frozenset()))
        sampling = Sampling(temperature=0.0, logprobs=changes.pop("logprobs", None))
        return self.asked(Request(key, tuple(prompt), sampling, stopping, **changes))

    def asked(self, request: Request, kvstore: str = "", sources: Iterable[BlockSource] = ()) -> Answer:
        """For a worker: with the store that the hand-over goes through, and those said to hold what is known."""
        answer = self._answers[request.key] = Answer(request.key, first=len(request.emitted))
        start = codec.start_to_pb(request, asyncio.get_running_loop().time(), "", kvstore, sources)
        self.send(session_pb2.Down(start=start))
        return answer

    def cancel(self, answer: Answer) -> None:
        key = answer.key
        self.send(session_pb2.Down(cancel=session_pb2.Cancel(request_id=key.request_id, attempt=key.attempt)))

    def finish(self, answer: Answer, index: int) -> None:
        key = answer.key
        finish = session_pb2.Finish(request_id=key.request_id, attempt=key.attempt, index=index)
        self.send(session_pb2.Down(finish=finish))

    def send(self, message: session_pb2.Down) -> None:
        assert self._session is not None
        self._session.send(message)

    def opened(self, session: Session[session_pb2.Down]) -> None:
        self._session = session
        self.is_open.set()

    def closed(self, session: Session[session_pb2.Down]) -> None:
        self._session = None

    def received(self, session: Session[session_pb2.Down], message: session_pb2.Up, now: float) -> None:
        for event in message.events.events:
            answer = self._answers[codec.key_from_pb(event)]
            assert not answer.is_over, "nothing follows the last event"
            answer.segments += codec.segments_from_pb(event.segments)
            match event.WhichOneof("kind"):
                case "tokens":
                    assert event.tokens.first_index == answer.first + len(answer.ids), "each index once and in order"
                    answer.ids += event.tokens.ids
                    answer.logprobs += codec.logprobs_from_pb(event.tokens)
                case "finished":
                    answer.finished = event.finished
                    answer.reason = codec.finish_reason_from_pb(event.finished)
                case "failed":
                    answer.error = codec.error_from_pb(event.failed)
            answer.changed.set()


@dataclass(eq=False)
class Member:
    """One running service."""

    address: str
    process: Process
    task: asyncio.Task[None]
    runner: ScriptedRunner | None = None

    async def kill(self) -> None:
        """As far as others can tell, it dies: its server and sessions are gone at once."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@dataclass(eq=False)
class ScriptedCluster:
    members: dict[str, Member]
    caller: Caller

    async def held(self) -> list[str]:
        rows = []
        for name, member in self.members.items():
            if member.process.stopping.is_set():
                # It may stop answering at any moment; what has ended holds nothing.
                await asyncio.wait([member.task])
            if member.task.done():
                continue
            async with dial.channel(member.address) as channel:
                report = await operations_pb2_grpc.OperationsStub(channel).Audit(operations_pb2.AuditRequest())
            rows += [f"{name}: {h.kind} {h.state}" for h in report.holdings if h.request_id or h.kind == "span"]
        return rows

    async def nothing_held(self) -> None:
        held: list[str] = []
        try:
            async with asyncio.timeout(5):
                while held := await self.held():
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"still held: {held}") from None

    async def status(self, name: str) -> operations_pb2.Announcement:
        async with dial.channel(self.members[name].address) as channel:
            return await operations_pb2_grpc.OperationsStub(channel).Status(operations_pb2.StatusRequest())


@asynccontextmanager
async def scripted_cluster(
    prefill: int = 1,
    decode: int = 1,
    limits: BatchLimits = LIMITS,
    faults: Mapping[str, dict[str, float]] = NO_FAULTS,
    queue_timeout: float = 3,
    stores: int = 1,
    scheduling: Mapping[str, object] = NOTHING_MORE,
    working: Mapping[str, object] = NOTHING_MORE,
    drain_seconds: float = 0,
) -> AsyncIterator[ScriptedCluster]:
    """Ready: every worker in the scheduler's view, every store reached by all of them. Nothing may be held at the end.

    `faults` are planted by kind of service; `scheduling` are more of the scheduler's settings, `working` of the
    workers'. Requests are split wherever they can be, unless these say otherwise.
    """
    addresses = {f"kvstore-{n}": address() for n in range(stores)} | {f"prefill-{n}": address() for n in range(prefill)}
    addresses |= {f"decode-{n}": address() for n in range(decode)} | {"scheduler-0": address()}
    kvstores = [addresses[f"kvstore-{n}"] for n in range(stores)]
    workers = [addresses[name] for name in addresses if name.startswith(("prefill", "decode"))]
    async with AsyncExitStack() as stack:
        members: dict[str, Member] = {}
        for name, listen in addresses.items():
            kind = name.partition("-")[0]
            fields = {"listen": listen, "name": name, "metrics_port": None, "session_timeout": 1.5}
            fields |= {"profile": "test", "drain_seconds": drain_seconds, "faults": faults.get(kind, {})}
            match kind:
                case "kvstore":
                    member = await run(stack, kind, KVStoreSettings(capacity_bytes=4 << 20, **fields), kvstore)
                case "scheduler":
                    fields |= {"workers": workers, "kvstores": kvstores, "queue_timeout": queue_timeout}
                    fields |= {"split": "always", **scheduling}
                    chosen = SchedulerSettings(**fields)
                    member = await run(stack, kind, chosen, scheduler)
                case _:
                    member = await run_worker(stack, kind, fields | {"kvstores": kvstores, **working}, limits)
            members[name] = member
        caller = Caller()
        hello = session_pb2.Hello(protocol=PROTOCOL, name="caller", incarnation="life")
        pool = SessionPool(
            session_pb2.Down,
            lambda channel: session_pb2_grpc.SessionStub(channel).Open,
            caller,
            Terms(hello, 5.0),
            "",
        )
        await stack.enter_async_context(pool)
        pool.ensure(addresses["scheduler-0"])
        cluster = ScriptedCluster(members, caller)
        await ready(cluster, len(workers) + stores)
        yield cluster
        await cluster.nothing_held()


async def ready(cluster: ScriptedCluster, peers: int) -> None:
    async with asyncio.timeout(10):
        await cluster.caller.is_open.wait()
        # A store is among them once all workers reach it.
        while len((await cluster.status("scheduler-0")).peers) < peers:
            await asyncio.sleep(0.01)


async def run(stack: AsyncExitStack, kind: str, settings: object, main: object) -> Member:
    process, _ = await stack.enter_async_context(process_of(kind, settings))
    task = asyncio.create_task(main(process), name=settings.name)
    stack.push_async_callback(stopped, process, task)
    return Member(settings.listen, process, task)


async def run_worker(stack: AsyncExitStack, kind: str, fields: dict[str, object], limits: BatchLimits) -> Member:
    runner = ScriptedRunner(limits.num_blocks, VOCAB)
    engine = WorkerEngine(runner, runner.kv, limits, "scripted", "ab" * 32, str(runner.kv.format))
    settings_type = {"prefill": PrefillSettings, "decode": DecodeSettings}[kind]

    async def main(process: Process) -> None:
        if kind == "prefill":
            await serve_worker(process, engine, lambda client, loop: Publishing(client, loop))
        else:
            await serve_worker(process, engine, lambda client, loop: Fetching(client, loop, process.telemetry))

    member = await run(stack, kind, settings_type(model=Path(), **fields), main)
    member.runner = runner
    return member


async def stopped(process: Process, task: asyncio.Task[None]) -> None:
    process.stopping.set()
    await asyncio.gather(task, return_exceptions=True)


def address() -> str:
    return f"127.0.0.1:{free_port()}"
