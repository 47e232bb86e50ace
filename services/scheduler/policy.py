"""Where a request goes: pure, and the same answer for the same view.

Every worker is weighed in every role it may have (`candidates.py`); the pair of prefill and decode worker that costs
the least stands against the decode worker that would do best by itself. Ties break by rendezvous of the request id.
Blocks go through a store that both workers reach; which stores have the prompt's beginning is told with the place.

The split is the rule: by itself a decode worker prefills only where that is better by a margin. Costs are predictions,
and within their error the split is the safer mistake, for it holds nobody's answer up. The margin needs no memory: what
is decided for one request binds no other, so a view that trembles at its edge changes between two equally good ways.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from services.core.block_facts import BlockSource
from services.core.request import Request
from services.scheduler.asking import Asking, Rules
from services.scheduler.candidates import Scored, scored_decode, scored_local, scored_prefill
from services.scheduler.cluster_view import ClusterView, WorkerStatus
from services.scheduler.decision_record import recorded
from services.scheduler.story import Placement
from services.scheduler.worker_table import WorkerTable

Weigh = Callable[[Scored], Scored]


@dataclass(frozen=True, slots=True)
class Policy:
    """A rule of placement by name: what of the terms counts."""

    name: str
    weigh: Weigh


OURS = Policy("ours", lambda scored: scored)
MOST_SOURCES = 4
"""Stores that a request is told of; whoever has the most blocks is among them."""
MARGIN_SHARE = 0.1
MARGIN_SECONDS = 0.01
"""A prompt is computed by the decode worker only if that is cheaper by both, in sum."""


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to serve a request: who computes its prompt, and who answers."""

    computes: Scored
    row: int
    decode: Scored
    decode_row: int

    @property
    def is_split(self) -> bool:
        return self.computes is not self.decode

    @property
    def cost(self) -> float:
        cost = float(self.computes.cost[self.row])
        return cost + float(self.decode.cost[self.decode_row]) if self.is_split else cost

    @property
    def has_room(self) -> bool:
        return bool(self.computes.has_room[self.row] and self.decode.has_room[self.decode_row])

    @property
    def addresses(self) -> tuple[str, str]:
        return self.computes.table.addresses[self.row], self.decode.table.addresses[self.decode_row]


def placed(asking: Asking, fingerprint: str, policy: Policy) -> Placement | None:
    """The place that costs the least as `policy` weighs it; None to wait for one. Only workers of the model
    `fingerprint`, if one is named.

    Waits where no decode worker has room for another request, and where the prefill workers that it could be paired
    with have none and the decode worker would do worse by itself.
    """
    request, view, rules = asking.request, asking.view, asking.rules
    tables = [table for table in view.estimates.tables("decode", fingerprint) if table.has_room()]
    decodes = [policy.weigh(scored_decode(asking, table)) for table in tables]
    decodes = [each for each in decodes if each.has_room.any()]
    if not decodes:
        return None
    prefill_tables = view.estimates.tables("prefill", fingerprint)
    prefills = [policy.weigh(scored_prefill(asking, table)) for table in prefill_tables]
    pairs = [
        (one, other) for one in prefills for other in decodes if rules.split != "never" and _is_linked(one, other, view)
    ]
    together = _cheapest(request, pairs)
    locals_ = [policy.weigh(scored_local(asking, each)) for each in decodes]
    alone = _cheapest(request, [(each, each) for each in locals_])
    assert alone is not None, "a decode worker had room a moment ago"
    scored = [*prefills, *decodes, *locals_] if together else locals_
    if together is None:
        reason = _unpaired(prefills, decodes, rules)
        return _placement(asking, policy, alone, reason, scored)
    compared = f"split {together.cost:.3f} s, by itself {alone.cost:.3f} s"
    if rules.split == "auto" and _is_worth_it(alone.cost, together.cost):
        return _placement(asking, policy, alone, compared, scored)
    return _placement(asking, policy, together, compared, scored) if together.has_room else None


def handover_store(request: Request, prefill: WorkerStatus, decode: WorkerStatus, view: ClusterView) -> tuple[str, str]:
    """A store that both reach, and why: one near prefill, which writes every block, before one near decode."""

    stores = view.stores_of(prefill, decode)
    kept = stores & prefill.near_stores or stores
    kept = kept & decode.near_stores or kept
    address = max(kept, key=lambda each: _rendezvous(request, each))
    near = [worker.name for worker in (prefill, decode) if address in worker.near_stores]
    return address, f"{view.name_of(address)}{' near ' if near else ''}{' and '.join(near)}"


def known_sources(asking: Asking, worker: WorkerStatus, table: WorkerTable) -> tuple[BlockSource, ...]:
    """Stores with the beginning of the prompt that the worker reaches, the most blocks first, then the near ones."""
    held = asking.held(table)
    stores = asking.view.stores_of(worker) if held else ()
    reached = [BlockSource(address, blocks) for address, blocks in held.items() if address in stores]
    return tuple(sorted(reached, key=lambda s: (-s.blocks, s.kvstore not in worker.near_stores, s.kvstore)))[
        :MOST_SOURCES
    ]


def _is_worth_it(alone: float, together: float) -> bool:
    """Whether the decode worker is to prefill by itself."""
    return alone < together - MARGIN_SECONDS - MARGIN_SHARE * together


def _is_linked(prefill: Scored, decode: Scored, view: ClusterView) -> bool:
    """Equal weights and equal KV format, and a store that both reach."""
    one, other = prefill.table.kind, decode.table.kind
    may_exchange = (one.fingerprint, one.format) == (other.fingerprint, other.format)
    return may_exchange and bool((one.stores & other.stores) - view.unready_stores)


def _cheapest(request: Request, pairs: Iterable[tuple[Scored, Scored]]) -> _Way | None:
    """One with room, if there is any."""
    ways = []
    for computes, decode in pairs:
        row, decode_row = computes.best(request), decode.best(request)
        if row is not None and decode_row is not None:
            ways.append(_Way(computes, row, decode, decode_row))
    if len(ways) < 2:
        return ways[0] if ways else None
    return min(ways, key=lambda way: (not way.has_room, way.cost, _rendezvous(request, "\0".join(way.addresses))))


def _unpaired(prefills: Sequence[Scored], decodes: Sequence[Scored], rules: Rules) -> str:
    """Why no prefill worker takes part."""
    if rules.split == "never":
        return "the setting says so"
    kinds = {(each.table.kind.fingerprint, each.table.kind.format) for each in decodes}
    partners = [each for each in prefills if (each.table.kind.fingerprint, each.table.kind.format) in kinds]
    if not any(each.is_fit.any() for each in partners):
        return "no prefill worker"
    return "no kvstore"


def _placement(asking: Asking, policy: Policy, way: _Way, reason: str, scored: Sequence[Scored]) -> Placement:
    request, view = asking.request, asking.view
    computes, decode = (view.workers[address] for address in way.addresses)
    sources = known_sources(asking, computes, way.computes.table)
    known = "; known " + ", ".join(f"{view.name_of(s.kvstore)}={s.blocks}" for s in sources) if sources else ""
    stored = max((source.blocks for source in sources), default=0)
    if min(stored, (len(request.tokens) - 1) // way.computes.table.block_size) > way.computes.cached[way.row]:
        # What is known and not worth fetching is not told, or it would be fetched.
        sources = ()
    hashes = tuple(asking.names.of(request.tokens, bytes.fromhex(computes.fingerprint), way.computes.table.block_size))
    record = recorded(asking, (way.computes, way.row), (way.decode, way.decode_row), scored)
    record = replace(record, policy=policy.name, reason=reason)
    if not way.is_split:
        why = f"decode {decode.name}; unsplit: {reason}{known}"
        return Placement(decode.address, why=why, sources=sources, hashes=hashes, record=record)
    kvstore, kvstore_why = handover_store(request, computes, decode, view)
    why = f"prefill {computes.name}; decode {decode.name}; {reason}; kvstore {kvstore_why}{known}"
    return Placement(decode.address, computes.address, kvstore, why, sources, hashes, record)


def _rendezvous(request: Request, address: str) -> bytes:
    """Spreads equal candidates evenly, and moves few requests when one comes or goes (Thaler and Ravishankar, 1998)."""
    return blake2b(f"{request.key.request_id}\0{address}".encode(), digest_size=8).digest()
