"""`KVStore` over gRPC: each message to one call and back; a span around every put and get."""

from collections.abc import AsyncIterator, Iterable

import grpc.aio

from services.core.errors import DiptychError
from services.kvstore.sessions import Sessions
from services.kvstore.shelf import Intake
from services.pb import kvstore_pb2, kvstore_pb2_grpc
from services.runtime.session import Acceptor, Terms
from services.runtime.telemetry import Telemetry

SERVICE = "diptych.internal.KVStore"


class KVStoreServer(kvstore_pb2_grpc.KVStoreServicer):
    """The servicer; errors are raised and become statuses at the edge."""

    def __init__(self, sessions: Sessions, terms: Terms, telemetry: Telemetry) -> None:
        self._sessions = sessions
        self._telemetry = telemetry
        self._acceptor = Acceptor(kvstore_pb2.StoreUp, terms, sessions)

    def register(self, server: grpc.aio.Server) -> None:
        kvstore_pb2_grpc.add_KVStoreServicer_to_server(self, server)

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
                span.set_attribute("diptych.blocks", intake.sealed)
                span.set_attribute("diptych.bytes", intake.sealed * shelf.storage.page_bytes)
        return kvstore_pb2.PutReply(sealed=intake.sealed)

    async def Get(
        self,
        request: kvstore_pb2.GetRequest,
        context: "grpc.aio.ServicerContext[kvstore_pb2.GetRequest, kvstore_pb2.GetPart]",
    ) -> AsyncIterator[kvstore_pb2.GetPart]:
        with self._telemetry.phase(
            "kvstore.get", _traceparent(context.invocation_metadata()), blocks=len(request.hashes)
        ) as span:
            count = 0
            try:
                for part in self._sessions.shelf.parts(request):
                    count += len(part.bytes)
                    yield part
            finally:
                span.set_attribute("diptych.bytes", count)


def _traceparent(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    return next((str(value) for key, value in metadata or () if key == "traceparent"), "")
