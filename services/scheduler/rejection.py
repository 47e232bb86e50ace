"""Who is refused at arrival: what no worker can ever hold, and what would wait in vain or slow all others down.

The second is Mooncake's early rejection by prediction (arXiv 2407.00079): what counts is the load of the decode workers
when the prompt would be computed, and not that of the moment. A load that is looked at one prefill too early admits too
many, then too few, and the pools swing in opposite phase. Pure.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from services.core.errors import ContextTooLong, NeverFits, Overloaded
from services.core.request import Request
from services.scheduler.admission import Queue
from services.scheduler.classes import TrafficClass
from services.scheduler.cluster_view import ClusterView, WorkerStatus
from services.scheduler.load_estimates import LoadEstimates

CERTAINTY = 0.7
"""Of the time that a request may wait, the part that its expected wait may take: so most who are let in are in time."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a request that comes now has before it."""

    wait: float
    """Seconds until it has a place; 0 also where nothing is known."""
    landing: float
    """Seconds until its prompt would be computed, behind those that are on the same worker now."""
    rows: float
    """Requests that this scheduler would have on the decode workers then, itself among them."""
    itl: float
    """Seconds from token to token then; 0 where no worker says what its steps cost."""


def check(request: Request, queue: Queue, view: ClusterView, model: str, now: float) -> float:
    """Seconds until its first token, as expected; 0 of a class without bounds.

    Raises ContextTooLong, NeverFits, or Overloaded with the time after which it may be otherwise.

    One whose time is up already is left to the queue, which knows what to tell it.
    """
    traffic = queue.classes.of(request.traffic_class)
    # The prefill workers are no second hurdle: what is too large for them the decode worker computes by itself.
    decode = usable(view, "decode", traffic, model)
    if (first := next(decode, None)) and not (holds(first, request) or any(holds(each, request) for each in decode)):
        _refuse(request, usable(view, "decode", traffic, model))
    patience = queue.timeout_of(traffic)
    if request.deadline is not None:
        patience = min(patience, request.deadline - now)
    position = queue.position(request, model)
    wait = _wait(queue, traffic, position, now)
    if wait > CERTAINTY * patience > 0:
        raise Overloaded("no place is expected to come free in time", retry_after=wait - CERTAINTY * patience)
    if not (traffic.max_ttft or traffic.max_itl):
        return 0.0
    ahead = outlook(request, queue, view, model, now)
    bound = traffic.max_ttft / queue.foresight.factor(traffic.name)
    if ahead.landing > bound > 0:
        raise Overloaded("no first token is expected in time", retry_after=ahead.landing - bound)
    if ahead.itl > traffic.max_itl > 0:
        raise Overloaded("the decode workers are busy", retry_after=queue.retry_after(position, now))
    return ahead.landing


def usable(view: ClusterView, service: str, traffic: TrafficClass, model: str) -> Iterator[WorkerStatus]:
    """Ready workers of a service that a request of this class and model may use."""
    for worker in view.workers.values():
        is_there = worker.service == service and worker.is_ready
        if is_there and model in ("", worker.fingerprint) and traffic.may_use(worker.name):
            yield worker


def holds(worker: WorkerStatus, request: Request) -> bool:
    """Whether the worker could have the request with all it knows so far and one token more, if it were alone there."""
    most = worker.blocks_total * worker.block_size
    if worker.max_context:
        most = min(most, worker.max_context) if most else worker.max_context
    return not most or len(request.tokens) < most


def _refuse(request: Request, decode: Iterable[WorkerStatus]) -> NoReturn:
    """Says which of a worker's bounds is in the way."""
    if all(0 < worker.max_context <= len(request.tokens) for worker in decode):
        raise ContextTooLong("the prompt leaves no room in the context of any worker", field="prompt")
    raise NeverFits("the prompt is larger than any worker can hold", field="prompt")


def outlook(request: Request, queue: Queue, view: ClusterView, model: str, now: float) -> Outlook:
    """From the queue before the request, from who leaves until it lands, and from what the workers' steps cost."""
    traffic = queue.classes.of(request.traffic_class)
    decode = list(usable(view, "decode", traffic, model))
    prefill = list(usable(view, "prefill", traffic, model)) or decode
    position = queue.position(request, model)
    wait = _wait(queue, traffic, position, now)
    landing = wait + _prefill_seconds(request, prefill, view.estimates, now) / (1 - _passed_by(queue, traffic, now))
    places = queue.capacity or queue.drain.running + position
    rows = queue.drain.running + position - queue.drain.freed(landing, 0, now)
    rows = max(min(rows, places), 1.0)
    return Outlook(wait, landing, rows, _itl(request, decode, rows))


def _wait(queue: Queue, traffic: TrafficClass, position: int, now: float) -> float:
    """Seconds until it has a place, also behind the more important who come meanwhile."""
    return queue.drain.wait(position, queue.capacity, now) / (1 - _passed_by(queue, traffic, now))


def _passed_by(queue: Queue, traffic: TrafficClass, now: float) -> float:
    """The share of everything that the more important take; on a worker they go first too."""
    return queue.arrivals.share(traffic.level, now, queue.drain.stay, queue.capacity)


def _prefill_seconds(request: Request, workers: Iterable[WorkerStatus], estimates: LoadEstimates, now: float) -> float:
    """On the worker that would be done first. While requests wait for places, whoever gets one finds about as many
    prompts before its own as there are now."""
    own = [(len(request.tokens), 0)]
    seconds = (
        estimates.busy_seconds(worker.address, now) + estimates.pace(worker.address) * worker.cost.of(own)
        for worker in workers
        if worker.cost
    )
    return min(seconds, default=0.0)


def _itl(request: Request, decode: Iterable[WorkerStatus], rows: float) -> float:
    """A step of the mean decode worker when `rows` are shared out by how many each may run."""
    known = [(worker, worker.cost) for worker in decode if worker.cost is not None]
    places = sum(worker.max_running for worker, _ in known)
    if not places:
        return 0.0
    running = sum(worker.running for worker, _ in known)
    contexts = sum(worker.context_tokens for worker, _ in known)
    context = contexts / running if running and contexts else float(len(request.tokens))
    steps = 0.0
    for worker, cost in known:
        count = rows * worker.max_running / places
        per_row = cost.per_token + (cost.per_token_context + cost.per_context) * context
        steps += cost.fixed + count * per_row
    return steps / len(known)
