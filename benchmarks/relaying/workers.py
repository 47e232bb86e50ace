"""Workers without an engine: each sends one message a step with a token for each of its requests."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import grpc.aio

from services.core.errors import WorkerLost
from services.core.ids import RequestKey
from services.core.ledger import Segment
from services.core.request import FinishReason
from services.pb import operations_pb2, operations_pb2_grpc, session_pb2
from services.runtime import codec, dial
from services.runtime.session import PROTOCOL, Session, Terms
from services.runtime.session_server import SessionServer

FINGERPRINT = "ab" * 32
FORMAT = "float16/kt1/b16/l30/h3x64"
ROWS = 16


class SteppingWorker(operations_pb2_grpc.OperationsServicer):
    """One decode worker. It runs ahead of the gateways by `credit` steps at most."""

    def __init__(self, name: str, credit: int) -> None:
        self.name = name
        self.address = ""
        self.is_full = asyncio.Event()
        self.credit = asyncio.Semaphore(credit)
        self.steps = 0
        self._keys: list[RequestKey] = []
        self._session: Session[session_pb2.Up] | None = None

    def opened(self, session: Session[session_pb2.Up]) -> None:
        self._session = session

    def received(self, session: Session[session_pb2.Up], message: session_pb2.Down, now: float) -> None:
        if message.WhichOneof("kind") == "start":
            self._keys.append(codec.key_from_pb(message.start))
            if len(self._keys) == ROWS:
                self.is_full.set()

    def closed(self, session: Session[session_pb2.Up]) -> None:
        self._session = None

    async def run(self, stopping: asyncio.Event) -> None:
        """Steps until told to stop, then finishes every request."""
        while not stopping.is_set():
            await self.credit.acquire()
            self._send([codec.tokens_event(key, self.steps, (self.steps % 1000,)) for key in self._keys])
            self.steps += 1
        segments = [Segment("decode.queue", 0.1), Segment("decode.prefill", 0.1), Segment("decode.run", 1.0)]
        self._send([codec.finished_event(key, FinishReason.LENGTH, segments) for key in self._keys])

    def _send(self, events: list[session_pb2.Event]) -> None:
        if self._session is None:
            raise WorkerLost("the scheduler has left")
        self._session.send(session_pb2.Up(events=session_pb2.Events(events=events)))

    async def Audit(self, request: operations_pb2.AuditRequest, context: object) -> operations_pb2.AuditReport:
        return operations_pb2.AuditReport(service="decode", name=self.name, incarnation="life")

    async def Status(self, request: operations_pb2.StatusRequest, context: object) -> operations_pb2.Announcement:
        load = operations_pb2.Load(running=len(self._keys), max_running=ROWS, blocks_total=8192, block_size=16)
        load.cost_fixed, load.cost_per_token, load.step_seconds = 0.003, 0.0003, 0.18
        return operations_pb2.Announcement(
            service="decode",
            name=self.name,
            incarnation="life",
            address=self.address,
            fingerprint=FINGERPRINT,
            format=FORMAT,
            is_ready=True,
            load=load,
        )


@asynccontextmanager
async def stepping_workers(count: int, credit: int) -> AsyncIterator[list[SteppingWorker]]:
    """So many, each on a server of its own."""
    async with AsyncExitStack() as stack:
        workers = []
        for number in range(count):
            worker = SteppingWorker(f"decode-{number}", credit)
            server = grpc.aio.server(options=list(dial.SERVER_OPTIONS))
            hello = session_pb2.Hello(
                protocol=PROTOCOL, name=worker.name, incarnation="life", fingerprint=FINGERPRINT, format=FORMAT
            )
            SessionServer(Terms(hello, 30.0), worker).register(server)
            operations_pb2_grpc.add_OperationsServicer_to_server(worker, server)
            worker.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            await server.start()
            stack.push_async_callback(server.stop, 0.2)
            workers.append(worker)
        yield workers
