"""Where a request goes: pure, and the same answer for the same view.

Filter, score, pick (the shape of the Kubernetes gateway's endpoint pickers): workers without room are filtered out,
every scorer gives a number in [0, 1], the weighted sum decides, and ties break by rendezvous hash of the request id.
To change the policy, change a scorer or a weight here.
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b

from services.core.request import Request
from services.scheduler.cluster_view import ClusterView, WorkerStatus
from services.scheduler.story import Placement

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


def place(request: Request, view: ClusterView, fingerprint: str = "") -> Placement | None:
    """The best place now; None if no decode worker has room. Only workers of the model `fingerprint`, if one is named.

    Split if there is a prefill worker with room and a store, and the two workers may exchange blocks; else the decode
    worker prefills by itself. With a prefill pool that is only full for the moment, the request waits.
    """
    suited = [worker for worker in view.pool("decode") if fingerprint in ("", worker.fingerprint)]
    decode_pool = [worker for worker in suited if view.has_room(worker)]
    if not decode_pool:
        return None
    decode, decode_why = _best(request, decode_pool, view, DECODE_SCORERS)
    partners = [worker for worker in view.pool("prefill") if _may_exchange(worker, decode)]
    if not partners or not view.kvstores:
        missing = "prefill worker" if not partners else "kvstore"
        return Placement(decode.address, why=f"decode {decode_why}; unsplit: no {missing}")
    prefill_pool = [worker for worker in partners if view.has_room(worker)]
    if not prefill_pool:
        return None
    prefill, prefill_why = _best(request, prefill_pool, view, PREFILL_SCORERS)
    kvstore = max(view.kvstores, key=lambda address: _rendezvous(request, address))
    return Placement(decode.address, prefill.address, kvstore, f"prefill {prefill_why}; decode {decode_why}")


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
