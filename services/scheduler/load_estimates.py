"""How busy each worker is expected to be: its own last word, and what this scheduler has given it or seen end since.

    heard ──▶ numbers ◀── placed, first_token, over          one column per number, one table per kind of worker

A worker's word is half a second old and does not know of what is on its way, so a place that was given counts at once
and until the word has it. Prefill work is a time until which the worker is busy; it passes by itself, and a first token
that comes early or late moves it. How first tokens' times go against what was expected is followed per worker (`pace`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from services.core.ids import BlockHash, RequestKey
from services.core.request import Request
from services.core.step_cost import StepCost
from services.scheduler.cached_prefixes import CachedPrefixes
from services.scheduler.cost_model import backlog
from services.scheduler.decision import Decision
from services.scheduler.prompt_work import PromptWork
from services.scheduler.worker_status import WorkerStatus
from services.scheduler.worker_table import Kind, WorkerTable

UNKNOWN_COST = StepCost(0.005, 0.0005, 0.0)
"""Of a worker that has said nothing of its steps, where none of its kind has: so that it is used, and learnt of."""
ON_ITS_WAY = 0.05
"""Seconds before a worker's word within which a place may not be in it."""
PACE_GAIN = 0.1
LEAST_PACE, MOST_PACE = 1 / 3, 3.0
LEAST_RATIO, MOST_RATIO = 0.5, 2.0
"""What one first token may say; further off is a hiccup and says no more than this."""
SLACK = 0.005
"""Seconds on both sides of that ratio, so that short times, which are mostly messages, say little."""
FIRST_GUESS = 128.0
"""Tokens of an answer before any has ended."""
LENGTH_GAIN = 0.02


@dataclass(slots=True)
class _Place:
    """One attempt that this scheduler has placed."""

    decision: Decision
    at: float
    tokens: int
    blocks: int
    is_computed: bool = False


@dataclass(slots=True)
class LoadEstimates:
    """Columns of numbers for all workers in the view."""

    cached: CachedPrefixes = field(default_factory=CachedPrefixes)
    answer_tokens: float = FIRST_GUESS
    """How long answers are on the average of late."""
    _tables: dict[Kind, WorkerTable] = field(default_factory=dict)
    _kinds: dict[str, Kind] = field(default_factory=dict)
    _heard_at: dict[str, float] = field(default_factory=dict)
    _usual: dict[tuple[str, str], StepCost] = field(default_factory=dict)
    """The latest cost said, by service and fingerprint."""
    _work: PromptWork = field(default_factory=PromptWork)
    _places: dict[RequestKey, _Place] = field(default_factory=dict)
    _on: dict[str, dict[RequestKey, _Place]] = field(default_factory=dict)
    """By worker, in order of placement."""

    # --- facts

    def heard(self, status: WorkerStatus, in_flight: int, now: float) -> None:
        """A worker's word."""
        table = self._file(status)
        address = status.address
        usual = self._usual.get((status.service, status.fingerprint), UNKNOWN_COST)
        cost = status.cost or usual
        if status.cost:
            self._usual[status.service, status.fingerprint] = status.cost
        is_prefill = status.service == "prefill"
        tokens = status.waiting_tokens if is_prefill else status.own_tokens
        prompts = status.running + status.waiting if is_prefill else 1
        pace = table.get(address, "pace")
        busy = now + pace * backlog(cost, status.step_seconds, tokens, prompts)
        contexts, blocks = float(status.context_tokens), float(status.blocks_used)
        for place in reversed(self._on.get(address, {}).values()):
            if place.at <= now - ON_ITS_WAY:
                break
            if place.decision.computes == address and not place.is_computed:
                busy += place.decision.prefill_seconds
            if place.decision.decode == address:
                contexts, blocks = contexts + place.tokens, blocks + place.blocks
        table.put_cost(address, cost, status.step_seconds)
        table.put_near(address, status.near_stores)
        table.put(address, in_flight=in_flight, max_running=status.max_running, ready=status.is_ready)
        table.put(address, contexts=contexts, blocks_total=status.blocks_total, blocks_used=blocks, busy_until=busy)
        self._heard_at[address] = now

    def withdrawn(self, address: str) -> None:
        """A worker takes nothing more until it speaks again."""
        if table := self._table(address):
            table.put(address, ready=False)

    def counted(self, address: str, in_flight: int) -> None:
        """So many requests are on a worker now."""
        if table := self._table(address):
            table.put(address, in_flight=in_flight)

    def gone(self, address: str) -> None:
        """A worker's session ended; its cache is lost with it, as far as anybody knows."""
        self._unfile(address)
        self._heard_at.pop(address, None)
        self.cached.forget(address)

    # --- own places

    def placed(self, request: Request, decision: Decision, now: float, hashes: Sequence[BlockHash] = ()) -> None:
        """A request was given its place; `hashes` are of its full blocks."""
        self.over(request.key, now)
        self._work.note("prefill" if decision.prefill else "decode", decision.prefill_seconds, now)
        tokens = len(request.tokens)
        decode = self._table(decision.decode)
        place = _Place(decision, now, tokens, -(-(tokens + 1) // decode.block_size) if decode else 0)
        self._places[request.key] = place
        for address in {decision.computes, decision.decode}:
            self._on.setdefault(address, {})[request.key] = place
            if hashes and (table := self._table(address)):
                self.cached.note(address, hashes, int(table.get(address, "blocks_total")))
        if table := self._table(decision.computes):
            busy = max(table.get(decision.computes, "busy_until"), now) + decision.prefill_seconds
            table.put(decision.computes, busy_until=busy)
        self._shift(decision.decode, place, 1)
        self._await(place, 1)

    def first_token(self, key: RequestKey, now: float) -> None:
        """A placed request's prompt is computed."""
        place = self._places.get(key)
        if place is None or place.is_computed:
            return
        place.is_computed = True
        self._await(place, -1)
        address, expected = place.decision.computes, place.decision.ttft
        table = self._table(address)
        if table is None or expected <= 0:
            return
        took = now - place.at
        if self._heard_at.get(address, now) < place.at:
            longest = place.decision.prefill_seconds
            late = min(max(took - expected, -longest), longest)
            table.put(address, busy_until=max(table.get(address, "busy_until") + late, now))
        ratio = min(max((took + SLACK) / (expected + SLACK), LEAST_RATIO), MOST_RATIO)
        pace = table.get(address, "pace") * ratio**PACE_GAIN
        table.put(address, pace=min(max(pace, LEAST_PACE), MOST_PACE))

    def over(self, key: RequestKey, now: float, answered: int = 0) -> None:
        """A placed attempt has ended after `answered` tokens, 0 if it did not come to its end."""
        place = self._places.pop(key, None)
        if place is None:
            return
        decision = place.decision
        for address in {decision.computes, decision.decode}:
            there = self._on[address]
            del there[key]
            if not there:
                del self._on[address]
        if not place.is_computed:
            self._await(place, -1)
        if not place.is_computed and (table := self._table(decision.computes)):
            busy = table.get(decision.computes, "busy_until") - decision.prefill_seconds
            table.put(decision.computes, busy_until=max(busy, now))
        self._shift(decision.decode, place, -1)
        if answered:
            self.answer_tokens += LENGTH_GAIN * (answered - self.answer_tokens)

    # --- views

    def tables(self, service: str, fingerprint: str) -> Iterator[WorkerTable]:
        """Of one service, and of one model if it is named."""
        for kind, table in self._tables.items():
            if kind.service == service and fingerprint in ("", kind.fingerprint):
                yield table

    def followers_per_second(self, service: str, now: float) -> float:
        """See `PromptWork`."""
        workers = sum(len(table) for kind, table in self._tables.items() if kind.service == service)
        return self._work.followers_per_second(service, workers, now)

    def expected_tokens(self, request: Request) -> float:
        """How many more tokens its answer is expected to have; at least 1."""
        left = request.stopping.max_tokens - len(request.emitted)
        return max(min(left, self.answer_tokens - len(request.emitted)), 1.0)

    # --- private

    def _shift(self, address: str, place: _Place, sign: int) -> None:
        """What a row holds on its decode worker comes or goes."""
        if table := self._table(address):
            contexts = max(table.get(address, "contexts") + sign * place.tokens, 0.0)
            blocks = max(table.get(address, "blocks_used") + sign * place.blocks, 0.0)
            table.put(address, contexts=contexts, blocks_used=blocks)

    def _await(self, place: _Place, change: int) -> None:
        """So many more, or fewer, of the requests on a decode worker are no rows of its steps yet."""
        address = place.decision.decode
        if table := self._table(address):
            table.put(address, awaiting=max(table.get(address, "awaiting") + change, 0.0))

    def _table(self, address: str) -> WorkerTable | None:
        kind = self._kinds.get(address)
        return self._tables[kind] if kind else None

    def _file(self, status: WorkerStatus) -> WorkerTable:
        """The worker's table; a worker that is now of another kind moves, and keeps its pace."""
        kind = Kind(status.service, status.fingerprint, status.format, status.stores)
        address, known = status.address, self._kinds.get(status.address)
        if known != kind:
            pace, awaiting = 1.0, 0.0
            if known:
                pace, awaiting = (self._tables[known].get(address, name) for name in ("pace", "awaiting"))
            self._unfile(address)
            self._kinds[address] = kind
            table = self._tables.setdefault(kind, WorkerTable(kind))
            table.add(address)
            table.put(address, pace=pace, awaiting=awaiting)
        return self._tables[kind]

    def _unfile(self, address: str) -> None:
        kind = self._kinds.pop(address, None)
        if kind is not None:
            self._tables[kind].remove(address)
            if not len(self._tables[kind]):
                del self._tables[kind]
