"""Who is refused at arrival: what no worker can ever hold, and what would wait in vain or slow all others down.

The second is Mooncake's early rejection by prediction (arXiv 2407.00079): what counts is the load of the decode workers
when the prompt would be computed, and not that of the moment. A load that is looked at one prefill too early admits too
many, then too few, and the pools swing in opposite phase. Pure.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import NoReturn

from services.core.errors import ContextTooLong, NeverFits, Overloaded
from services.core.request import Request
from services.scheduler.admission import Queue
from services.scheduler.asking import Asking
from services.scheduler.candidates import first_token_seconds
from services.scheduler.classes import TrafficClass
from services.scheduler.cluster_view import ClusterView, WorkerStatus

CERTAINTY = 0.7
"""Of the time that a request may wait, the part that its expected wait may take: so most who are let in are in time."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a request that comes now has before it."""

    position: int
    """In the queue, 1 being next."""
    wait: float
    """Seconds until it has a place; 0 also where nothing is known."""
    landing: float
    """Seconds until its prompt would be computed, behind those that are on the same worker now."""
    rows: float
    """Requests that this scheduler would have on the decode workers then, itself among them."""
    itl: float
    """Seconds from token to token then; 0 where no worker says what its steps cost."""


def check(asking: Asking, queue: Queue, model: str) -> float:
    """Seconds until its first token, as expected; 0 of a class without bounds.

    Raises ContextTooLong, NeverFits, or Overloaded with the time after which it may be otherwise.

    One whose time is up already is left to the queue, which knows what to tell it.
    """
    request, view, now = asking.request, asking.view, asking.now
    traffic = queue.classes.of(request.traffic_class)
    # The prefill workers are no second hurdle: what is too large for them the decode worker computes by itself.
    decode = usable(view, "decode", traffic, model)
    if (first := next(decode, None)) and not (holds(first, request) or any(holds(each, request) for each in decode)):
        _refuse(request, usable(view, "decode", traffic, model))
    patience = queue.timeout_of(traffic)
    if request.deadline is not None:
        patience = min(patience, request.deadline - now)
    ahead = outlook(asking, queue, model) if traffic.max_ttft or traffic.max_itl else None
    wait = ahead.wait if ahead else _wait(asking, queue, model)
    if wait > CERTAINTY * patience > 0:
        raise Overloaded("no place is expected to come free in time", retry_after=wait - CERTAINTY * patience)
    if ahead is None:
        return 0.0
    bound = traffic.max_ttft / queue.foresight.factor(traffic.name)
    if ahead.landing > bound > 0:
        raise Overloaded("no first token is expected in time", retry_after=ahead.landing - bound)
    if ahead.itl > traffic.max_itl > 0:
        raise Overloaded("the decode workers are busy", retry_after=queue.retry_after(ahead.position, now))
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


def outlook(asking: Asking, queue: Queue, model: str) -> Outlook:
    """From the queue before the request, from who leaves until it lands, and from what the workers' steps cost."""
    request, view, now = asking.request, asking.view, asking.now
    traffic = queue.classes.of(request.traffic_class)
    position, wait = queue.position(request, model), _wait(asking, queue, model)
    # While requests wait for places, whoever gets one finds about as many prompts before its own as there are now.
    landing = wait + _prompt_seconds(asking, model) / (1 - _passed_by(asking, queue))
    places = queue.capacity or queue.drain.running + position
    rows = queue.drain.running + position - queue.drain.freed(landing, 0, now)
    rows = max(min(rows, places), 1.0)
    return Outlook(position, wait, landing, rows, _itl(request, usable(view, "decode", traffic, model), rows))


def _wait(asking: Asking, queue: Queue, model: str) -> float:
    """Seconds until it has a place, also behind the more important who come meanwhile."""
    position = queue.position(asking.request, model)
    return queue.drain.wait(position, queue.capacity, asking.now) / (1 - _passed_by(asking, queue))


def _passed_by(asking: Asking, queue: Queue) -> float:
    """The share of everything that the more important take; on a worker they go first too."""
    level = queue.classes.of(asking.request.traffic_class).level
    return queue.arrivals.share(level, asking.now, queue.drain.stay, queue.capacity)


def _prompt_seconds(asking: Asking, model: str) -> float:
    """From its place to its first token, on the worker that would be the first to have it; 0 if there is none."""
    for service in ("prefill", "decode"):
        tables = asking.view.estimates.tables(service, model)
        if (least := min((first_token_seconds(asking, table) for table in tables), default=inf)) < inf:
            return least
    return 0.0


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
