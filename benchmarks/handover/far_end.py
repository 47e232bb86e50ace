"""The other end of what the far way is compared with: bytes over TCP, and over a gRPC stream that does nothing else.

    python -m handover.far_end BYTES     prints both ports as JSON; ends with its standard input

A request for bytes is one byte over TCP, an empty message over gRPC; the answer is all of them.
"""

import asyncio
import json
import socket
import sys
import threading

import grpc.aio
import numpy as np
import uvloop

from services.runtime import dial
from services.runtime.memory_reuse import reuse_large_memory

BUFFER_BYTES = 4 << 20
"""Of a socket, in both directions."""
PIECE_BYTES = 1 << 20
"""That a system call moves; with all at once the stream is slower by a third."""
METHOD = "diptych.benchmark.Bytes"


def tuned(connection: socket.socket) -> socket.socket:
    """With large buffers. To be done before it connects or listens."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    return connection


def main() -> None:
    reuse_large_memory()
    content = np.ones(int(sys.argv[1]), np.uint8).data
    listener = tuned(socket.socket())
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    threading.Thread(target=_serve_tcp, args=(listener, content), daemon=True).start()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve_grpc(content, listener.getsockname()[1]))


def _serve_tcp(listener: socket.socket, content: memoryview) -> None:
    connection, _ = listener.accept()
    with connection:
        while connection.recv(1):
            for start in range(0, len(content), PIECE_BYTES):
                connection.sendall(content[start : start + PIECE_BYTES])


async def _serve_grpc(content: memoryview, tcp_port: int) -> None:
    async def send(_: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        for start in range(0, len(content), dial.PART_BYTES):
            await context.write(bytes(content[start : start + dial.PART_BYTES]))

    server = grpc.aio.server(options=list(dial.SERVER_OPTIONS))
    method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(send, None, None)
    server.add_registered_method_handlers(METHOD, {"Send": method})
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(json.dumps({"tcp": tcp_port, "grpc": port}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(grace=0)


if __name__ == "__main__":
    main()
