"""`python -m services.kvstore`: wires the KV transfer service."""

from services.kvstore.server import SERVICE, KVStoreServer
from services.kvstore.sessions import Sessions
from services.kvstore.settings import Settings
from services.pb import session_pb2
from services.runtime.process import Process, run
from services.runtime.server import Parts, serving
from services.runtime.session import PROTOCOL, Terms


async def main(process: Process[Settings]) -> None:
    """Serves until it is told to stop."""
    identity, settings = process.identity, process.settings
    hello = session_pb2.Hello(protocol=PROTOCOL, name=identity.name, incarnation=identity.incarnation)
    sessions = Sessions(settings.capacity_blocks)
    terms = Terms(hello, settings.session_timeout, process.faults)
    store = KVStoreServer(sessions, terms, process.telemetry)
    parts = Parts(
        register=[store.register],
        services=[SERVICE],
        holdings=sessions.holdings,
        load=sessions.load,
        peers=sessions.peers,
        idle=sessions.idle,
    )
    async with serving(process, parts) as server:
        await server.live()


if __name__ == "__main__":
    run("kvstore", Settings, main)
