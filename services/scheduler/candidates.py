"""What each worker of a kind would cost a request in each role, term by term. Pure; arrays have one element per worker.

    prefill   wait + transfer + compute + handover + delay       until the first token, and for decode to have the rest
    decode    itl + slowdown + room                              of the whole answer, for it and for those beside it
    local     wait + transfer + compute + delay + stall + the decode terms, where the decode worker prefills

All are seconds of waiting of somebody, and all weigh the same: a prompt computed beside `n` streams holds up `n`
(`stall`), and one before which others stand holds up as many as will come until they are gone (`delay`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from services.core.request import Request
from services.scheduler import cost_model
from services.scheduler.asking import Asking
from services.scheduler.beginnings import Beginning, beginning_of
from services.scheduler.cluster_view import ClusterView
from services.scheduler.cost_model import FAR_BYTES_PER_SECOND, NEAR_BYTES_PER_SECOND, Floats
from services.scheduler.decision import Candidate
from services.scheduler.worker_table import WorkerTable

PRESSURE = 0.05
"""What a full cache costs beside an empty one, as a share of the answer's time: blocks that others might have found."""


@dataclass(frozen=True, slots=True)
class Scored:
    """The workers of one kind in one role."""

    role: str
    table: WorkerTable
    terms: Mapping[str, Floats]
    cost: Floats
    """Sum of the terms."""
    is_fit: NDArray[np.bool_]
    """Whether the worker may have the request at all."""
    has_room: NDArray[np.bool_]
    """Whether it may and would begin at once."""
    cached: Floats
    """Blocks of the prompt that would not be computed."""
    compute: Floats
    """Seconds that the worker is busy with the prompt; 0 in the role of decode."""
    itl: Floats

    def best(self, request: Request) -> int | None:
        """Row of the cheapest worker with room; of the cheapest that is fit if none has room, None if none is."""
        name = request.key.request_id
        row = self.table.first(np.where(self.has_room, self.cost, np.inf), name)
        return self.table.first(np.where(self.is_fit, self.cost, np.inf), name) if row is None else row

    def candidate(self, row: int, view: ClusterView) -> Candidate:
        """For the record."""
        terms = tuple((name, float(values[row])) for name, values in self.terms.items())
        name = view.workers[self.table.addresses[row]].name
        return Candidate(self.role, name, float(self.cost[row]), terms, int(self.cached[row]))


def scored_prefill(asking: Asking, table: WorkerTable) -> Scored:
    """Workers of a prefill kind, each with the hand-over through a store of its own."""
    beginning = beginning_of(asking, table, table.costs(), 0.0)
    blocks = len(asking.request.tokens) // table.block_size - beginning.local
    near = table.are_near(table.kind.stores - asking.view.unready_stores)
    rate = np.where(near, NEAR_BYTES_PER_SECOND, FAR_BYTES_PER_SECOND)
    handed = cost_model.handover(beginning.computing, blocks * table.block_bytes, rate)
    wait = np.maximum(table.column("busy_until") - asking.now, 0.0)
    terms = {
        "wait": wait,
        "transfer": beginning.transfer,
        "compute": beginning.seconds,
        "handover": handed,
        "delay": _delay(asking, table, wait, beginning.seconds),
    }
    needed = -(-len(asking.request.tokens) // table.block_size)
    return _scored("prefill", asking, table, _Parts(terms, beginning, np.zeros(len(table)), needed))


def first_token_seconds(asking: Asking, table: WorkerTable) -> float:
    """Until the first token on whichever of these workers would be the first to have it; inf if none may compute it."""
    scored = scored_prefill(asking, table)
    seconds = scored.terms["wait"] + scored.terms["transfer"] + scored.terms["compute"]
    return float(np.where(scored.is_fit, seconds, np.inf).min(initial=np.inf))


def scored_decode(asking: Asking, table: WorkerTable) -> Scored:
    """Workers of a decode kind that get the prompt's blocks from elsewhere."""
    nothing = np.zeros(len(table))
    terms, itl = _decode_terms(asking, table)
    cold = Beginning(nothing, nothing, nothing, nothing, cost_model.Prefill(nothing, nothing))
    most = -(-(len(asking.request.prompt) + asking.request.stopping.max_tokens) // table.block_size)
    return _scored("decode", asking, table, _Parts(terms, cold, itl, most))


def scored_local(asking: Asking, decode: Scored) -> Scored:
    """The same workers if they computed the prompt by themselves, between the steps of their streams."""
    table = decode.table
    costs, count = table.costs(), table.column("in_flight")
    rows = np.maximum(count - table.column("awaiting"), 0.0)
    beside = cost_model.rows(costs, rows, table.column("contexts") * rows / np.maximum(count, 1.0))
    beginning = beginning_of(asking, table, costs, beside)
    wait = np.maximum(table.column("busy_until") - asking.now, 0.0)
    # Every step of the prompt is one of theirs too; it holds them up by what it takes beyond that.
    theirs = beginning.computing.steps * (costs.fixed + beside) * table.column("pace")
    terms = {
        "wait": wait,
        "transfer": beginning.transfer,
        "compute": beginning.seconds,
        "delay": _delay(asking, table, wait, beginning.seconds),
        # Those whose first token is still to come land while the prompt is computed, and then stand still too.
        "stall": count * np.maximum(beginning.seconds - theirs, 0.0),
        **decode.terms,
    }
    return replace(
        decode,
        role="local",
        terms=terms,
        cost=sum(terms.values(), np.zeros(len(table))),
        cached=beginning.cached,
        compute=beginning.seconds,
    )


def _delay(asking: Asking, table: WorkerTable, wait: Floats, compute: Floats) -> Floats:
    """What the prompt costs those who will stand behind it, each of whom waits `compute` longer (`prompt_work.py`)."""
    return wait * compute * asking.view.estimates.followers_per_second(table.kind.service, asking.now)


@dataclass(frozen=True, slots=True)
class _Parts:
    terms: Mapping[str, Floats]
    beginning: Beginning
    itl: Floats
    needed: int
    """Blocks that a worker must have in all."""


def _decode_terms(asking: Asking, table: WorkerTable) -> tuple[dict[str, Floats], Floats]:
    """Cost of the answer's tokens with this request among the rows, and the seconds between tokens."""
    costs, count, pace = table.costs(), table.column("in_flight"), table.column("pace")
    expected = asking.view.estimates.expected_tokens(asking.request)
    tokens = len(asking.request.tokens)
    contexts = tokens + expected / 2
    own = cost_model.rows(costs, np.ones(len(table)), np.full(len(table), contexts)) * pace
    itl = (costs.fixed + cost_model.rows(costs, count, table.column("contexts"))) * pace + own
    need = -(-(tokens + 1) // table.block_size)
    growth = expected / table.block_size
    idle = table.column("blocks_total") - table.column("blocks_used")
    # Those that run grow too, each by half an answer on the average.
    short = np.clip((need + growth + count * growth / 2 - idle) / (need + growth), 0.0, 1.0)
    used = 1.0 - idle / np.maximum(table.column("blocks_total"), 1.0)
    terms = {
        "itl": expected * itl,
        "slowdown": expected * count * own,
        "room": expected * itl * (PRESSURE * used + np.where(need > idle, 1.0 + short, short) * (count > 0)),
    }
    return terms, itl


def _scored(role: str, asking: Asking, table: WorkerTable, parts: _Parts) -> Scored:
    beginning = parts.beginning
    fit = table.column("ready") > 0
    if asking.rules.may_use is not None:
        workers = asking.view.workers
        fit &= np.fromiter((asking.rules.may_use(workers[each].name) for each in table.addresses), np.bool_, len(table))
    large = table.column("blocks_total") >= parts.needed
    if role == "prefill" or (fit & large).any():
        # A decode worker that is too small says so itself, unless there is a larger one.
        fit &= large
    free = fit & (table.column("in_flight") < table.column("max_running"))
    free[table.rows(asking.view.overloaded)] = False
    cost = sum(parts.terms.values(), np.zeros(len(table)))
    compute, itl = beginning.seconds, parts.itl
    return Scored(role, table, parts.terms, cost, fit, free, beginning.cached, compute, itl)
