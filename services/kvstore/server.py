"""`KVStore` over gRPC: each message to one call and back; a span around every put and get."""

from collections.abc import AsyncIterator, Iterable

import grpc
import grpc.aio

from services.core.errors import DiptychError, InvalidRequest
from services.core.fault_plan import corrupted
from services.kvstore.facts import FactsPublisher
from services.kvstore.outflow import Outflow
from services.kvstore.sessions import Sessions
from services.kvstore.shelf import Intake
from services.pb import kvstore_pb2, kvstore_pb2_grpc
from services.runtime.session import Acceptor, Terms
from services.runtime.telemetry import Telemetry

SERVICE = "diptych.internal.KVStore"
LAST = b""
"""A part of nothing: that was all."""


class KVStoreServer(kvstore_pb2_grpc.KVStoreServicer):
    """The servicer; errors are raised and become statuses at the edge."""

    def __init__(self, sessions: Sessions, facts: FactsPublisher, terms: Terms, telemetry: Telemetry) -> None:
        self._sessions = sessions
        self._facts = facts
        self._faults = terms.faults
        self._telemetry = telemetry
        self._acceptor = Acceptor(kvstore_pb2.StoreUp, terms, sessions)

    def register(self, server: grpc.aio.Server) -> None:
        kvstore_pb2_grpc.add_KVStoreServicer_to_server(self, server)
        pull: grpc.RpcMethodHandler[kvstore_pb2.PullDown, bytes] = grpc.stream_stream_rpc_method_handler(
            self.Pull, kvstore_pb2.PullDown.FromString, None
        )
        server.add_registered_method_handlers(SERVICE, {"Pull": pull})

    async def Open(  # type: ignore[override]  # the stub knows only generators; this one reads and writes by itself
        self,
        request_iterator: AsyncIterator[kvstore_pb2.StoreDown],
        context: "grpc.aio.ServicerContext[kvstore_pb2.StoreDown, kvstore_pb2.StoreUp]",
    ) -> None:
        await self._acceptor.accept(context)

    async def Put(
        self,
        request_iterator: AsyncIterator[kvstore_pb2.PutPart],
        context: "grpc.aio.ServicerContext[kvstore_pb2.PutPart, kvstore_pb2.PutReply]",
    ) -> kvstore_pb2.PutReply:
        with self._telemetry.phase("kvstore.put", _traceparent(context.invocation_metadata())) as span:
            shelf = self._sessions.shelf
            intake = Intake(shelf, self._sessions.post)
            try:
                async for part in request_iterator:
                    intake.take(part)
                intake.finish()
            except DiptychError:
                intake.close()
                # Heard out, because grpc.aio loses the status for a caller that is still writing when its call ends.
                async for _ in request_iterator:
                    pass
                raise
            finally:
                intake.close()
                span.set_attribute("diptych.blocks", intake.reply.sealed)
                span.set_attribute("diptych.bytes", intake.reply.sealed * shelf.block_bytes)
        return intake.reply

    async def Pull(  # type: ignore[override]  # as Open; what it writes is a Part on the wire already
        self,
        request_iterator: AsyncIterator[kvstore_pb2.PullDown],
        context: "grpc.aio.ServicerContext[kvstore_pb2.PullDown, bytes]",
    ) -> None:
        first: object = await context.read()
        if not isinstance(first, kvstore_pb2.PullDown) or first.WhichOneof("kind") != "open":
            raise InvalidRequest("a pull begins with what is wanted")
        parent = _traceparent(context.invocation_metadata())
        with self._telemetry.phase("kvstore.get", parent, blocks=len(first.open.hashes)) as span:
            pull = Outflow(self._sessions.shelf, first.open)
            try:
                await self._send(pull, first.open.credit, context)
            finally:
                span.set_attribute("diptych.bytes", pull.bytes)

    async def _send(
        self, pull: Outflow, credit: int, context: "grpc.aio.ServicerContext[kvstore_pb2.PullDown, bytes]"
    ) -> None:
        passage = self._faults.passage("kv.part", corrupted)
        while not pull.is_over:
            while credit <= 0:
                more: object = await context.read()
                if not isinstance(more, kvstore_pb2.PullDown):
                    # The reader wants no more.
                    return
                credit += more.credit
            credit -= 1
            for part in await passage.through(pull.next_part()):
                await context.write(part)
        for part in (*passage.rest(), LAST):
            await context.write(part)
        # A call that ends while its reader writes loses what the reader has not read.
        while isinstance(await context.read(), kvstore_pb2.PullDown):
            pass

    async def Inventory(  # type: ignore[override]  # as Open
        self,
        request: kvstore_pb2.InventoryRequest,
        context: "grpc.aio.ServicerContext[kvstore_pb2.InventoryRequest, kvstore_pb2.BlockFacts]",
    ) -> None:
        for message in self._facts.inventory(request):
            await context.write(message)


def _traceparent(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    return next((str(value) for key, value in metadata or () if key == "traceparent"), "")
