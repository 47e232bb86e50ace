"""`python -m services.kvstore`: wires the KV transfer service."""

from functools import partial

from services.core.errors import InternalError
from services.core.memory import EngineMemory
from services.kvstore import views
from services.kvstore.arena import Arena
from services.kvstore.facts import FactsPublisher
from services.kvstore.holdings import Holdings
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
    terms = Terms(hello, settings.session_timeout, process.faults, step="store.step")
    with _arena(settings) as arena:
        sessions = Sessions(arena, process.telemetry)
        facts = FactsPublisher(process.bus, identity, sessions.content)
        store = KVStoreServer(sessions, facts, terms, process.telemetry)
        parts = Parts(
            register=[store.register],
            services=[SERVICE],
            holdings=Holdings(sessions).held,
            load=partial(views.load, sessions),
            peers=partial(views.peers, sessions),
            memory=lambda: EngineMemory(kv_reserved=arena.size),
            idle=sessions.idle,
        )
        async with serving(process, parts) as server:
            await server.live(sessions.keep(), facts.keep(server.address))


def _arena(settings: Settings) -> Arena:
    """Exits with a readable line where there is no room for it."""
    try:
        return Arena(settings.arena_directory, settings.capacity_bytes)
    except InternalError as error:
        raise SystemExit(f"kvstore: {error.message}") from None


if __name__ == "__main__":
    run("kvstore", Settings, main)
