"""Compares what all processes say they hold, and finds what nobody knows of who must.

Whatever is held for a request is held because somebody else holds something, up to the gateway that answers a client:

    gateway request ◀─ story ◀─ work ◀─ request (blocks of a worker), publication, fetch, borrowing
                                           hand-over, pins, awaited, granted ◀─ publication or fetch; loan ◀─ borrowing

What is still copied into a store's cache when its request is over is a keeping, for as long as it has pages there.

Processes are asked one after the other, so one look proves nothing: what was let go, or taken up, in between looks
like a leak. Proof are two looks with time for every message between them. Whoever must know begins before what it
knows of begins, and what it knows of ends soon after it. So a thing that was there before anybody was asked, that
nobody knew of then and nobody knows of now, has outstayed by the time between the looks. Pure; asks nobody.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

GRACE = 5.0
"""Seconds within which what nobody knows of any more is let go: all messages on their way have arrived, and a session
that is silent has ended."""


@dataclass(frozen=True, slots=True)
class Held:
    """One thing that a process says it holds."""

    kind: str
    request_id: str = ""
    """Empty if it is held for no request."""
    attempt: int = 0
    age: float = 0.0
    count: int = 1
    state: str = ""
    owner: str = ""
    """`name/incarnation` of the process that it is held for; several are parted by `, `."""
    last_heard: float = 0.0
    """Seconds since the owner last spoke; 0 where there is nobody to hear."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one process said, and when it was asked and heard on the clock of whoever asked."""

    service: str
    name: str
    asked: float
    heard: float
    incarnation: str = ""
    held: tuple[Held, ...] = ()
    blocks_used: int = 0
    """Of its KV cache, or of the store, as its load has them."""
    is_silent: bool = False
    """It lives and does not answer: it may hold and know anything."""


@dataclass(frozen=True, slots=True)
class Stranded:
    """Something that is held and should not be."""

    service: str
    name: str
    """Of the process that holds it."""
    incarnation: str
    held: Held
    why: str


class _Rule(NamedTuple):
    """Who must know of something, and by what."""

    group: Literal["gateway", "scheduler", "worker", "kvstore", "itself"]
    kinds: frozenset[str]
    by: Literal["attempt", "request"]
    why: str
    """What it means if nobody does."""


_GROUPS = {"prefill": "worker", "decode": "worker"}
"""Services that are the same to an audit."""

_MOVED = _Rule(
    "worker", frozenset({"publication", "fetch"}), "attempt", "no worker has a publication or a fetch for it"
)
_GRANTED = _Rule(
    "worker", _MOVED.kinds | {"keeping"}, "attempt", "no worker has a publication, a fetch or a keeping for it"
)
_KEPT = _Rule("kvstore", frozenset({"granted"}), "attempt", "no kvstore has granted pages for it")
_LENT = _Rule("worker", frozenset({"borrowing", "fetch"}), "attempt", "no worker borrows it")
_COMPUTED = _Rule("itself", frozenset({"work"}), "attempt", "its worker has no work for it")
_ORDERED = _Rule("scheduler", frozenset({"story"}), "attempt", "no scheduler has a story of this attempt")
_ASKED = _Rule("gateway", frozenset({"request"}), "request", "no gateway answers this request")

KNOWN_BY: Mapping[tuple[str, str], _Rule] = {
    ("scheduler", "story"): _ASKED,
    ("worker", "work"): _ORDERED,
    ("worker", "request"): _COMPUTED,
    ("worker", "publication"): _COMPUTED,
    ("worker", "keeping"): _KEPT,
    ("worker", "fetch"): _COMPUTED,
    ("worker", "borrowing"): _COMPUTED,
    ("kvstore", "handoff"): _MOVED,
    ("kvstore", "pins"): _MOVED,
    ("kvstore", "awaited"): _MOVED,
    ("kvstore", "granted"): _GRANTED,
    ("kvstore", "loan"): _LENT,
}
"""By kind of process and of thing. Anything else that is held for a request must be some gateway's, except a gateway's
own request, which is its client's."""

_USERS: Mapping[str, frozenset[str]] = {
    "worker": frozenset({"request", "pinned blocks"}),
    "kvstore": frozenset({"pins", "granted", "loan", "quarantine"}),
}
"""Whose counts account for the blocks that a process uses; a block that several share counts for each of them."""

_TRANSFERS = frozenset({"publication", "keeping", "fetch", "borrowing"})
"""What pins blocks of a worker."""

_OF_A_PROCESS = frozenset({"session", "arena"})
"""Held also while nobody asks for anything."""


def stranded(before: Sequence[Snapshot], after: Sequence[Snapshot], grace: float = GRACE) -> list[Stranded]:
    """What is in both looks and known in neither. Nothing, unless there are `grace` seconds between them."""
    if not before or not after or seconds_between(before, after) < grace:
        return []
    reach = max(each.heard for each in after) - min(each.asked for each in before)
    earlier = {_identity(one) for one in suspects(before)}
    return [
        replace(one, held=replace(one.held, age=reach)) if math.isinf(one.held.age) else one
        for one in suspects(after)
        if _identity(one) in earlier and one.held.age >= reach
    ]


def seconds_between(before: Sequence[Snapshot], after: Sequence[Snapshot]) -> float:
    """From the last answer of one look to the first question of the other."""
    return min(each.asked for each in after) - max(each.heard for each in before)


def suspects(snapshots: Sequence[Snapshot]) -> list[Stranded]:
    """What nobody knows of in one look: stranded, or being let go or taken up just now."""
    known = _Knowledge(snapshots)
    return [
        Stranded(each.service, each.name, each.incarnation, one, why)
        for each in snapshots
        for one, why in (*known.doubts(each), *_lost_blocks(each))
    ]


def held(snapshots: Iterable[Snapshot]) -> list[tuple[str, Held]]:
    """All that would not be held if nobody had ever asked for anything, by the name of the process."""
    return [
        (each.name, one)
        for each in snapshots
        for one in (*each.held, *(lost for lost, _ in _lost_blocks(each)))
        if one.kind not in _OF_A_PROCESS
    ]


class _Knowledge:
    """All that was said in one look."""

    def __init__(self, snapshots: Iterable[Snapshot]) -> None:
        self._said: set[tuple[str, ...]] = set()
        self._silent: set[str] = set()
        self._living: set[str] = set()
        for each in snapshots:
            group = _group(each)
            self._living.add(each.incarnation)
            if each.is_silent:
                self._silent.add(group)
            for one in each.held:
                keys = (_attempt(one), _request(one))
                self._said.update((place, one.kind, *key) for place in (group, _life(each)) for key in keys)

    def doubts(self, snapshot: Snapshot) -> Iterator[tuple[Held, str]]:
        """What of a process nobody knows, and why that is wrong."""
        for one in snapshot.held:
            if why := self._reason_against(snapshot, one):
                yield one, why

    def _reason_against(self, snapshot: Snapshot, one: Held) -> str:
        """Empty if it may be held, as far as this look goes."""
        group = _group(snapshot)
        if one.kind == "span":
            is_busy = any(other.request_id for other in snapshot.held)
            return "" if is_busy else "its process holds nothing for any request"
        if one.kind == "pinned blocks":
            is_moving = any(other.kind in _TRANSFERS for other in snapshot.held)
            return "" if is_moving else "its worker moves no blocks"
        if one.kind == "quarantine":
            return "" if self._is_alive(one.owner) else "the process that may be writing is gone"
        if one.kind in _OF_A_PROCESS or not one.request_id or (group, one.kind) == ("gateway", "request"):
            return ""
        rule = KNOWN_BY.get((group, one.kind), _ASKED)
        return "" if self._is_known(rule, snapshot, one) else rule.why

    def _is_known(self, rule: _Rule, snapshot: Snapshot, one: Held) -> bool:
        if rule.group in self._silent:
            return True
        place = _life(snapshot) if rule.group == "itself" else rule.group
        key = _attempt(one) if rule.by == "attempt" else _request(one)
        return any((place, kind, *key) in self._said for kind in rule.kinds)

    def _is_alive(self, owner: str) -> bool:
        return bool(self._silent) or owner.rpartition("/")[2] in self._living


def _lost_blocks(snapshot: Snapshot) -> Iterator[tuple[Held, str]]:
    """Blocks that are used beyond what is said to use them; how long they have been is not known."""
    users = _USERS.get(_group(snapshot), frozenset())
    lost = snapshot.blocks_used - sum(one.count for one in snapshot.held if one.kind in users)
    if lost > 0:
        yield Held("blocks", count=lost, age=math.inf), "nothing that the process holds accounts for them"


def _group(snapshot: Snapshot) -> str:
    return _GROUPS.get(snapshot.service, snapshot.service)


def _life(snapshot: Snapshot) -> str:
    return f"{snapshot.service}/{snapshot.name}/{snapshot.incarnation}"


def _attempt(one: Held) -> tuple[str, str]:
    return one.request_id, str(one.attempt)


def _request(one: Held) -> tuple[str]:
    """The client's request: its further answers have its id with a number."""
    return (one.request_id.partition(".")[0],)


def _identity(one: Stranded) -> tuple[str, ...]:
    state = one.held.state if one.held.kind == "span" else ""
    return one.service, one.name, one.incarnation, one.held.kind, one.held.request_id, str(one.held.attempt), state
