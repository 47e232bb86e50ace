"""Where a request goes: pure, and the same answer for the same view.

Filter, score, pick (the shape of the Kubernetes gateway's endpoint pickers): workers without room are filtered out,
every scorer gives a number in [0, 1], the weighted sum decides, and ties break by rendezvous hash of the request id.
To change the policy, change a scorer or a weight here. Blocks go through a store that both workers reach; which stores
have the prompt's beginning is told along with the place.
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b

from services.core.block_facts import BlockSource
from services.core.blocks import BlockNames
from services.core.model_config import KVFormat
from services.core.request import Request
from services.scheduler.cluster_view import ClusterView, WorkerStatus
from services.scheduler.story import Placement

MOST_SOURCES = 4
"""Stores that a request is told of; whoever has the most blocks is among them."""

Scorer = Callable[[Request, WorkerStatus, ClusterView], float]
"""In [0, 1]; higher is better."""


def few_in_flight(request: Request, worker: WorkerStatus, view: ClusterView) -> float:
    """The share of the worker's batch that is idle."""
    return 1.0 - min(view.in_flight(worker) / worker.max_running, 1.0)


def free_blocks(request: Request, worker: WorkerStatus, view: ClusterView) -> float:
    """The share of the worker's KV blocks that nobody holds."""
    return 1.0 - worker.blocks_used / worker.blocks_total if worker.blocks_total else 0.0


def short_queue(request: Request, worker: WorkerStatus, view: ClusterView) -> float:
    """Half at as many waiting prompt tokens as the request's own."""
    return len(request.prompt) / (len(request.prompt) + worker.waiting_tokens)


PREFILL_SCORERS: Mapping[str, tuple[float, Scorer]] = {
    "short_queue": (1.0, short_queue),
    "few_in_flight": (1.0, few_in_flight),
}
DECODE_SCORERS: Mapping[str, tuple[float, Scorer]] = {
    "few_in_flight": (1.0, few_in_flight),
    "free_blocks": (1.0, free_blocks),
}


def place(
    request: Request, view: ClusterView, names: BlockNames | None = None, fingerprint: str = ""
) -> Placement | None:
    """The best place now; None if no decode worker has room. Only workers of the model `fingerprint`, if one is named.

    Split if there is a prefill worker with room, the two workers may exchange blocks and both reach one store; else the
    decode worker prefills by itself. With a prefill pool that is only full for the moment, the request waits.
    """
    names = names or BlockNames(request.salt)
    suited = [worker for worker in view.pool("decode") if fingerprint in ("", worker.fingerprint)]
    decode_pool = [worker for worker in suited if view.has_room(worker)]
    if not decode_pool:
        return None
    decode, decode_why = _best(request, decode_pool, view, DECODE_SCORERS)
    partners = [worker for worker in view.pool("prefill") if _may_exchange(worker, decode)]
    linked = [worker for worker in partners if view.stores_of(worker, decode)]
    if not linked:
        missing = "prefill worker" if not partners else "kvstore"
        sources = known_sources(request, decode, view, names)
        why = f"decode {decode_why}; unsplit: no {missing}{_said(sources, view)}"
        return Placement(decode.address, why=why, sources=sources)
    prefill_pool = [worker for worker in linked if view.has_room(worker)]
    if not prefill_pool:
        return None
    prefill, prefill_why = _best(request, prefill_pool, view, PREFILL_SCORERS)
    kvstore, kvstore_why = handover_store(request, prefill, decode, view)
    sources = known_sources(request, prefill, view, names)
    why = f"prefill {prefill_why}; decode {decode_why}; kvstore {kvstore_why}{_said(sources, view)}"
    return Placement(decode.address, prefill.address, kvstore, why, sources)


def handover_store(request: Request, prefill: WorkerStatus, decode: WorkerStatus, view: ClusterView) -> tuple[str, str]:
    """A store that both reach, and why: one near prefill, which writes every block, before one near decode."""

    def preference(address: str) -> tuple[bool, bool, bytes]:
        return address in prefill.near_stores, address in decode.near_stores, _rendezvous(request, address)

    address = max(view.stores_of(prefill, decode), key=preference)
    near = [worker.name for worker in (prefill, decode) if address in worker.near_stores]
    return address, f"{view.name_of(address)}{' near ' if near else ''}{' and '.join(near)}"


def known_sources(
    request: Request, worker: WorkerStatus, view: ClusterView, names: BlockNames
) -> tuple[BlockSource, ...]:
    """Stores with the beginning of the prompt that the worker reaches, the most blocks first, then the near ones."""
    if not view.prefixes.has_any(worker.fingerprint, worker.format):
        return ()
    block_size = KVFormat.parsed(worker.format).block_size
    hashes = names.of(request.tokens, bytes.fromhex(worker.fingerprint), block_size)
    longest = view.prefixes.longest(hashes, worker.fingerprint, worker.format)
    reached = [BlockSource(address, longest[address]) for address in view.stores_of(worker) if address in longest]
    return tuple(sorted(reached, key=lambda s: (-s.blocks, s.kvstore not in worker.near_stores, s.kvstore)))[
        :MOST_SOURCES
    ]


def _said(sources: Sequence[BlockSource], view: ClusterView) -> str:
    return "; known " + ", ".join(f"{view.name_of(s.kvstore)}={s.blocks}" for s in sources) if sources else ""


def _may_exchange(one: WorkerStatus, other: WorkerStatus) -> bool:
    """Equal weights and equal KV format."""
    return (one.fingerprint, one.format) == (other.fingerprint, other.format)


def _best(
    request: Request,
    candidates: Sequence[WorkerStatus],
    view: ClusterView,
    scorers: Mapping[str, tuple[float, Scorer]],
) -> tuple[WorkerStatus, str]:
    """The winner, and every candidate's scores for the record."""
    scores = {
        worker.address: {name: weight * score(request, worker, view) for name, (weight, score) in scorers.items()}
        for worker in candidates
    }
    best = max(candidates, key=lambda w: (sum(scores[w.address].values()), _rendezvous(request, w.address)))
    record = ", ".join(
        f"{worker.name}={sum(scores[worker.address].values()):.2f}"
        f"({' '.join(f'{name} {value:.2f}' for name, value in scores[worker.address].items())})"
        for worker in candidates
    )
    return best, f"{best.name} of {record}"


def _rendezvous(request: Request, address: str) -> bytes:
    """Spreads equal candidates evenly, and moves few requests when one comes or goes (Thaler and Ravishankar, 1998)."""
    return blake2b(f"{request.key.request_id}\0{address}".encode(), digest_size=8).digest()
