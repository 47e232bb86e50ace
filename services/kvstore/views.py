"""What a store says of itself in its announcements; what it holds is in `holdings.py`."""

from services.kvstore.sessions import Sessions
from services.pb import operations_pb2


def load(sessions: Sessions) -> operations_pb2.Load:
    """Blocks; none before a worker has said how large they are."""
    shelf = sessions.content()
    if shelf is None:
        return operations_pb2.Load()
    index = shelf.exchange.index
    return operations_pb2.Load(blocks_total=index.capacity, blocks_used=index.num_used, blocks_cached=index.num_cached)


def peers(sessions: Sessions) -> list[str]:
    """Names of the processes there is a session with."""
    return sorted({session.peer.name for session in sessions.sessions()})
