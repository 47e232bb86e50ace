"""The accepting side of `diptych.internal.Session`: what scheduler, prefill and decode put on their server."""

import grpc.aio

from services.pb import session_pb2, session_pb2_grpc
from services.runtime.session import Acceptor, Receiver, Terms

SERVICE = "diptych.internal.Session"


class SessionServer(session_pb2_grpc.SessionServicer):
    """Hands every session to `receiver`."""

    def __init__(self, terms: Terms, receiver: Receiver[session_pb2.Up, session_pb2.Down]) -> None:
        self._acceptor = Acceptor(session_pb2.Up, terms, receiver)

    async def Open(  # type: ignore[override]  # grpcio takes a coroutine that writes; the stubs know iterators only
        self, request_iterator: object, context: "grpc.aio.ServicerContext[session_pb2.Down, session_pb2.Up]"
    ) -> None:
        await self._acceptor.accept(context)

    def register(self, server: grpc.aio.Server) -> None:
        session_pb2_grpc.add_SessionServicer_to_server(self, server)
